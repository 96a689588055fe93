//! Taking the figures of an object's programs.

use std::path::Path;

use bpf_driver::timing::Settings;
use bpf_kernel::ProgramVerdict;
use bpf_object::{FuncId, Object};

use super::baseline::Figures;
use super::judge::Measured;
use crate::args::{CiArgs, RawArgs};
use crate::bench;
use crate::failure::Failure;
use crate::files;
use crate::load;

/// Of a program that libbpf does not get as far as loading.
const NOT_LOADABLE: &str = "not loadable";

/// Measures the programs of an object.
pub fn measure(args: &CiArgs, path: &Path) -> Result<Vec<Measured>, Failure> {
    let object = Object::parse(files::read(path)?).map_err(|e| Failure::object(path, &e))?;
    let mut programs = counted(&object);
    if !args.no_kernel {
        ask(args, path, &object, &mut programs)?;
    }
    if args.run_time {
        time(args, path, &mut programs)?;
    }
    Ok(programs)
}

/// The programs as they stand, without the kernel.
fn counted(object: &Object) -> Vec<Measured> {
    let programs = bpf_check::programs(object);
    let functions = programs.iter().filter_map(|f| Some((*f, object.functions().get(f.0)?)));
    let named: Vec<(FuncId, &str, &str)> =
        functions.map(|(f, it)| (f, it.name.as_str(), it.section.as_str())).collect();
    let names: Vec<(&str, &str)> = named.iter().map(|(_, name, section)| (*name, *section)).collect();
    named
        .iter()
        .map(|(f, name, section)| Measured {
            name: called(name, section, &names),
            source: object.line_of(*f, 0),
            figures: Figures { slots: slots(object, *f), ..Figures::default() },
            why: String::new(),
        })
        .collect()
}

/// What the kernel says of the programs.
fn ask(args: &CiArgs, path: &Path, object: &Object, programs: &mut Vec<Measured>) -> Result<(), Failure> {
    let verdict = load::ask(&RawArgs::default(), args.program_type.as_deref(), path)?;
    let names: Vec<(&str, &str)> = verdict.programs.iter().map(|p| (p.name.as_str(), p.section.as_str())).collect();
    let judged: Vec<Measured> = verdict.programs.iter().map(|p| told(object, p, &names)).collect();
    programs.retain(|counted| judged.iter().all(|p| p.name != counted.name));
    for program in &mut *programs {
        program.figures.verdict = Some(NOT_LOADABLE.to_owned());
        program.why = verdict.not_loadable.as_deref().unwrap_or("libbpf does not know it").trim_end().to_owned();
    }
    programs.extend(judged);
    Ok(())
}

/// What the kernel says of a program.
fn told(object: &Object, p: &ProgramVerdict, all: &[(&str, &str)]) -> Measured {
    let entry = object.entries(&p.name, &p.section).first().copied();
    let stats = p.stats.as_ref().filter(|_| p.verdict.is_accepted());
    let figures = Figures {
        slots: entry.map_or(p.slots as u64, |f| slots(object, f)),
        insns: stats.map(|s| s.processed),
        stack: stats.map(|s| s.stack_depths.iter().map(|depth| u64::from(*depth)).sum()),
        ns: None,
        verdict: stats.is_none().then(|| load::verdict(&p.verdict).to_owned()),
    };
    let source = entry.and_then(|f| object.line_of(f, 0));
    Measured { name: called(&p.name, &p.section, all), source, figures, why: p.verdict.reason().to_owned() }
}

/// What the baseline calls a program: its name, and its section, too, if there are several of this name.
fn called(name: &str, section: &str, all: &[(&str, &str)]) -> String {
    match all.iter().filter(|(other, _)| *other == name).count() {
        0 | 1 => name.to_owned(),
        _ => format!("{name} in {section}"),
    }
}

/// The slots of a program and of the functions that are loaded with it.
fn slots(object: &Object, f: FuncId) -> u64 {
    let functions = object.loaded_with([f]).into_iter().filter_map(|f| object.functions().get(f.0));
    functions.map(|f| f.slots as u64).sum()
}

/// Times the programs that can be timed.
fn time(args: &CiArgs, path: &Path, programs: &mut [Measured]) -> Result<(), Failure> {
    // Baselines are held against each other whichever way a kernel lets them be timed.
    let settings = Settings { program_type: args.program_type.clone(), serialized: false, ..Settings::default() };
    for timed in bench::timed(&[path.to_owned()], &settings, false)? {
        let Some(program) = programs.iter_mut().find(|p| p.name == timed.name) else { continue };
        let ns = timed.classes.first().and_then(|all| all.objects.first()).map(|it| it.ns.middle);
        // The empty program's time is taken off, so what takes no time may come out below nothing.
        program.figures.ns = ns.filter(|ns| ns.is_finite()).map(|ns| (10.0 * ns.max(0.0)).round().abs() / 10.0);
        if let (None, Some(why)) = (program.figures.ns, timed.skipped) {
            program.why = why;
        }
    }
    Ok(())
}
