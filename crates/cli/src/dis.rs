//! `bpf-opt dis`: the code of an object as text.

use std::fmt::Write;
use std::path::Path;

use bpf_driver::Module;
use bpf_object::{FuncId, Object};

use crate::args::DisArgs;
use crate::failure::{Failure, exit};
use crate::input::Input;
use crate::{cfg, files, listing};

/// Column at which comments start.
const COMMENT: usize = 52;

/// Runs the command.
pub fn run(args: &DisArgs) -> Result<u8, Failure> {
    let input = Input::read_to_show(&args.file, &args.raw, args.program_type.as_deref())?;
    let object = Object::parse(input.object).map_err(|e| Failure::object(&args.file, &e))?;
    let wanted = select(&args.file, &object, &args.program)?;
    if args.ssa {
        files::print(&ssa(object, &wanted))?;
        return Ok(exit::YES);
    }
    if args.cfg {
        files::print(&cfg::graph(&object, &wanted))?;
    } else {
        files::print(&text(&object, &wanted, args.lines))?;
    }
    for warning in object.warnings() {
        files::complain(format_args!("warning: {warning}"));
    }
    Ok(exit::YES)
}

/// The functions in SSA form, or why they have none.
fn ssa(object: Object, wanted: &[FuncId]) -> String {
    let module = Module::new(object);
    let mut text = String::new();
    for (n, f) in wanted.iter().enumerate() {
        let gap = if n == 0 { "" } else { "\n" };
        let _ = writeln!(text, "{gap}; {}", listing::title(&module.object, *f));
        let form = match &module.graphs[f.0] {
            Ok(graph) => module.with_env(|env| bpf_ssa::lift(graph, env, true)).map_err(|e| e.to_string()),
            Err(why) => Err(why.clone()),
        };
        let _ = match form {
            Ok(form) => write!(text, "{form}"),
            Err(why) => writeln!(text, "; no SSA form: {why}"),
        };
    }
    text
}

/// The functions of these names; all if there are no names.
pub fn select(path: &Path, object: &Object, names: &[String]) -> Result<Vec<FuncId>, Failure> {
    let all = object.functions();
    if let Some(name) = names.iter().find(|name| !all.iter().any(|f| f.name == **name)) {
        return Err(Failure::no_such_program(path, name, all.iter().map(|f| f.name.as_str())));
    }
    let wanted = |i: &usize| names.is_empty() || all.get(*i).is_some_and(|f| names.contains(&f.name));
    Ok((0..all.len()).filter(wanted).map(FuncId).collect())
}

fn text(object: &Object, wanted: &[FuncId], show_lines: bool) -> String {
    let mut text = String::new();
    for (n, &f) in wanted.iter().enumerate() {
        let gap = if n == 0 { "" } else { "\n" };
        let _ = writeln!(text, "{gap}; {}", listing::title(object, f));
        if let Some(reason) = object.locked(f) {
            let _ = writeln!(text, "; not optimized: {reason}");
        }
        let mut place = None;
        for line in listing::lines(object, f) {
            if line.is_target {
                let _ = writeln!(text, "{}:", listing::label(line.slot));
            }
            let here = object.line_of(f, line.slot).filter(|_| show_lines);
            if here.is_some() && here != place {
                if let Some(line) = &here {
                    let _ = writeln!(text, "; {}", listing::source(line));
                }
                place = here;
            }
            let start = format!("{:6}:  {}", line.slot, line.text);
            let _ = match line.comment.as_str() {
                "" => writeln!(text, "{start}"),
                comment => writeln!(text, "{start:COMMENT$} ; {comment}"),
            };
        }
    }
    text
}
