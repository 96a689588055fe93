//! Objects with functions that were made faster by hand, for `scripts/run-time --hand`.
//!
//! A form is a text: `; object: k2/15-xdp_fw.o`, `; function: prog`, `; how: …`, and edits: `@ 2..5` stands above what comes in the place of
//! the slots from 2 up to 5 (without it; `@ 5..5` inserts), in the assembler's syntax, with labels on lines of their own. `s7` is the
//! label of slot 7 of the object, and `r1 = &NAME` the address of a map or a variable, to which the function must refer already.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bpf_isa::{Insn, decode_all, encode, parse_listing};
use bpf_object::{FuncId, NewInsn, Object, RefKind, WriteOptions};
use clap::Parser;

#[derive(Parser)]
struct Args {
    /// Texts.
    forms: Vec<PathBuf>,
    /// Folders below which objects are (may be repeated); forms of objects that are in none of them are left out.
    #[arg(long, default_value = "../shared/bench")]
    bench: Vec<PathBuf>,
    /// Where to write, by the objects' names.
    #[arg(short, long)]
    output: PathBuf,
}

fn main() -> Result<(), String> {
    let args = Args::parse();
    let at = |path: &Path| {
        let path = path.display().to_string();
        move |e: std::io::Error| format!("{path}: {e}")
    };
    std::fs::create_dir_all(&args.output).map_err(at(&args.output))?;
    // Several functions of one object.
    let mut made: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for path in &args.forms {
        let text = std::fs::read_to_string(path).map_err(at(path))?;
        let field = |name: &str| {
            let found = text.lines().find_map(|l| l.strip_prefix("; ")?.strip_prefix(name)?.strip_prefix(": "));
            found.map(str::trim).ok_or_else(|| format!("{}: it does not say `; {name}: …`", path.display()))
        };
        let name = field("object")?;
        let Some(original) = args.bench.iter().map(|folder| folder.join(name)).find(|path| path.exists()) else {
            println!("{}: {name} is not there", path.display());
            continue;
        };
        let bytes = match made.remove(name) {
            Some(bytes) => bytes,
            None => std::fs::read(&original).map_err(at(&original))?,
        };
        let bytes = with_body(bytes, field("function")?, &text).map_err(|e| format!("{}: {e}", path.display()))?;
        made.insert(name.to_owned(), bytes);
    }
    for (name, bytes) in made {
        let path = args.output.join(Path::new(&name).file_name().unwrap_or_default());
        std::fs::write(&path, bytes).map_err(at(&path))?;
    }
    Ok(())
}

/// An instruction of the new body: its text, and the slot of the object whose reference it carries.
type Line = (String, Option<usize>);

/// The object with an edited function.
fn with_body(bytes: Vec<u8>, function: &str, text: &str) -> Result<Vec<u8>, String> {
    let mut object = Object::parse(bytes).map_err(|e| e.to_string())?;
    let f = object.function_named(function).ok_or_else(|| format!("no function {function}"))?;
    let code = object.code(f).to_vec();
    let edits = edits(text)?;
    let old = decode_all(&code).map_err(|e| e.to_string())?;
    let mut lines: Vec<Line> = Vec::new();
    let mut at = 0;
    for edit in edits.iter().chain([&Edit { from: code.len() / 8, to: code.len() / 8, lines: Vec::new() }]) {
        let kept = old.iter().filter(|(slot, _)| (at..edit.from).contains(slot));
        lines.extend(kept.map(|(slot, insn)| kept_line(&object, f, *slot, insn)));
        // Jumps to what was there lead to what is there now.
        let mut labels: String =
            old.iter().map(|(s, _)| *s).filter(|s| (edit.from..edit.to).contains(s)).map(label).collect();
        for line in &edit.lines {
            let slot = reference(&object, f, line)?;
            lines.push((format!("{}{line}", std::mem::take(&mut labels)), slot));
        }
        if !labels.is_empty() {
            return Err(format!("nothing stands in the place of the slots from {}", edit.from));
        }
        at = edit.to;
    }
    // Of what carries a reference only the size counts.
    let stand_in = |(line, slot): &Line| {
        let labels = line.rfind(": ").map_or("", |end| &line[..end + 2]);
        match *slot {
            None => line.clone(),
            Some(slot) if code[slot * 8] == 0x18 => format!("{labels}r0 = 0 ll"),
            Some(_) => format!("{labels}r0 = 0"),
        }
    };
    let listing = lines.iter().map(stand_in).collect::<Vec<_>>().join("\n");
    let insns = parse_listing(&listing).map_err(|e| format!("{e} of\n{listing}"))?;
    let mut body = Vec::new();
    for (insn, (line, slot)) in insns.iter().zip(&lines) {
        let mut bytes = Vec::new();
        match *slot {
            None => encode(insn, &mut bytes).map_err(|e| format!("{line}: {e}"))?,
            Some(slot) => {
                bytes.extend(&code[slot * 8..(slot + insn.slots()) * 8]);
                let text = line.rfind(": ").map_or(line.as_str(), |end| &line[end + 2..]);
                if let Some(register) = text.strip_prefix('r').and_then(|t| t.split(' ').next()) {
                    bytes[1] = bytes[1] & 0xf0 | register.parse::<u8>().map_err(|e| format!("{line}: {e}"))?;
                }
            }
        }
        body.push(NewInsn { bytes, origin: None, refs_from: *slot });
    }
    object.set_body(f, body).map_err(|e| e.to_string())?;
    Ok(object.write(&WriteOptions::default()).map_err(|e| e.to_string())?.bytes)
}

/// What comes in the place of some slots.
struct Edit {
    from: usize,
    to: usize,
    lines: Vec<String>,
}

fn edits(text: &str) -> Result<Vec<Edit>, String> {
    let mut edits: Vec<Edit> = Vec::new();
    let mut labels = String::new();
    for line in text.lines().map(|l| l.split(';').next().unwrap_or_default().trim()).filter(|l| !l.is_empty()) {
        if let Some(range) = line.strip_prefix("@ ") {
            let (from, to) = range.split_once("..").ok_or_else(|| format!("{line}: no range"))?;
            let number = |t: &str| t.trim().parse::<usize>().map_err(|e| format!("{line}: {e}"));
            edits.push(Edit { from: number(from)?, to: number(to)?, lines: Vec::new() });
        } else if line.ends_with(':') {
            labels.push_str(line);
            labels.push(' ');
        } else {
            let edit = edits.last_mut().ok_or_else(|| format!("{line}: no edit begins before"))?;
            edit.lines.push(format!("{}{line}", std::mem::take(&mut labels)));
        }
    }
    if !edits.is_sorted_by(|a, b| a.to <= b.from) {
        return Err("edits that are not in the order of their slots".to_owned());
    }
    Ok(edits)
}

fn label(slot: usize) -> String {
    format!("s{slot}: ")
}

/// An instruction that stays.
fn kept_line(object: &Object, f: FuncId, slot: usize, insn: &Insn) -> Line {
    let is_referred =
        object.refs(f).iter().any(|r| r.slot == slot) || object.core_relocs(f).iter().any(|r| r.slot == slot);
    let to = |off: i32| format!("s{}", slot as i64 + 1 + i64::from(off));
    let text = insn.to_string();
    let head = text.split("goto").next().unwrap_or_default();
    let text = match insn {
        Insn::Ja { off, .. } => format!("goto {}", to(*off)),
        Insn::Jcc { off, .. } => format!("{head}goto {}", to((*off).into())),
        _ => text,
    };
    (format!("{}{text}", label(slot)), is_referred.then_some(slot))
}

/// The slot whose reference an instruction borrows, if it does.
fn reference(object: &Object, f: FuncId, insn: &str) -> Result<Option<usize>, String> {
    let insn = insn.rfind(": ").map_or(insn, |end| &insn[end + 2..]);
    let name = match (insn.split_once("= &"), insn.strip_prefix("call ")) {
        (Some((_, name)), _) => name,
        (_, Some(name)) if !name.starts_with(|c: char| c.is_ascii_digit()) => name,
        _ => return Ok(None),
    };
    let is = |id: FuncId| object.functions()[id.0].name == name;
    let found = object.refs(f).iter().find(|r| match &r.kind {
        RefKind::Map { map, .. } => object.maps()[*map].name == name,
        RefKind::Data { symbol, .. } => symbol == name,
        RefKind::FuncAddr { target } | RefKind::Call { target } => is(*target),
        _ => false,
    });
    found.map(|r| Some(r.slot)).ok_or_else(|| format!("it has no reference to {name}"))
}
