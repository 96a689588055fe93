//! `bpf-opt run`: a program in the interpreter.
//!
//! Each packet gets a world of its own, into which maps and global data are carried over from the one before.

use std::fmt::Write;
use std::path::Path;

use bpf_driver::interpret::{Program, RunState};
use bpf_object::{FuncId, FuncKind, Object};
use bpf_program::ProgKind;
use bpf_semantics::interp::{ArgValue, Event, Fault, Interp, KernelHost, Outcome};

use crate::args::RunArgs;
use crate::failure::{Failure, exit};
use crate::{files, packets};

/// Steps before a run counts as endless: more than any program that the kernel accepts needs on a packet.
const FUEL: u64 = 1 << 26;

/// Runs the command.
pub fn run(args: &RunArgs) -> Result<u8, Failure> {
    let bytes = files::read(&args.file)?;
    let object = Object::parse(bytes).map_err(|e| Failure::object(&args.file, &e))?;
    let chosen = choose(&args.file, &object, args.program.as_deref())?;
    let context = args.context.as_deref().map(packets::hex).transpose();
    let context = context.map_err(|e| Failure::bad_input(format!("--context: {e}")))?;
    let program = program(&args.file, &object, chosen)?;
    if !object.core_relocs(chosen).is_empty() {
        files::complain("note: CO-RE accesses run as compiled; this kernel's structures may be laid out differently");
    }
    let packets = packets::packets(args)?;
    let before = program.start();
    let mut state = before.clone();
    let mut code = exit::YES;
    for (n, packet) in packets.iter().enumerate() {
        if packets.len() > 1 {
            files::print(&format!("packet {} of {}, {} bytes\n", n + 1, packets.len(), packet.len()))?;
        }
        let (world, outcome) = program.run(packet, context.as_deref(), &state, FUEL);
        files::print(&told(&program, packet, &world, &outcome))?;
        state = program.state(&world.host);
        if let Err(fault) = outcome {
            code = if is_limit(&fault) { exit::UNKNOWN } else { exit::NO };
            break;
        }
    }
    files::print(&changes(&state, &before))?;
    Ok(code)
}

/// Packets on which a fault is looked for.
const TRIES: [usize; 24] =
    [0, 14, 64, 1, 2, 4, 6, 8, 12, 13, 15, 18, 20, 28, 34, 38, 42, 54, 60, 100, 128, 256, 512, 1500];
/// Steps of one such try.
const TRY_FUEL: u64 = 1 << 20;

/// A packet, in hexadecimal, on which a program faults in the interpreter, and the fault.
pub fn faulting_packet(path: &Path, object: &Object, f: FuncId) -> Option<(String, String)> {
    let program = program(path, object, f).ok()?;
    let state = program.start();
    let fill = |n: usize, kind: usize| -> Vec<u8> {
        (0..n)
            .map(|i| match kind {
                0 => 0,
                1 => 0xff,
                // An IPv4 packet, as far as it goes.
                _ => *[&[2; 12][..], &[8, 0, 0x45, 0, 0, 60, 0, 0, 0, 0, 64, 6]].concat().get(i).unwrap_or(&(i as u8)),
            })
            .collect()
    };
    for (n, kind) in TRIES.iter().flat_map(|n| (0..3).map(move |k| (*n, k))) {
        let packet = fill(n, kind);
        let (_, outcome) = program.run(&packet, None, &state, TRY_FUEL);
        if let Err(fault) = outcome
            && !is_limit(&fault)
        {
            return Some((hex::encode(&packet), fault.to_string()));
        }
    }
    None
}

/// Whether the interpreter, not the program, is to blame.
fn is_limit(fault: &Fault) -> bool {
    matches!(fault, Fault::Unmodelled(_) | Fault::OutOfFuel)
}

/// The program to run: the one of this name, or the only one.
fn choose(path: &Path, object: &Object, name: Option<&str>) -> Result<FuncId, Failure> {
    let programs = || object.functions().iter().filter(|f| f.kind == FuncKind::Program).map(|f| f.name.as_str());
    match name {
        Some(name) => object
            .functions()
            .iter()
            .position(|f| f.name == name && f.kind == FuncKind::Program)
            .map(FuncId)
            .ok_or_else(|| Failure::no_such_program(path, name, programs())),
        None => {
            let names: Vec<&str> = programs().collect();
            match names.len() {
                1 => choose(path, object, names.first().copied()),
                0 => Err(Failure::bad_input(format!("{}: the object has no program", path.display()))),
                n => Err(Failure::bad_input(format!("{}: the object has {n} programs", path.display()))
                    .with_hint(format!("choose with --program: {}", names.join(", ")))),
            }
        }
    }
}

/// A program, as the user sees it.
fn program(path: &Path, object: &Object, chosen: FuncId) -> Result<Program, Failure> {
    let program = Program::of(object, chosen);
    let mut program = program.map_err(|e| Failure::bad_input(format!("{}: {e}", path.display())))?;
    program.core_as_compiled = true;
    Ok(program)
}

/// What a return value means to the hook, where that is one of a few words.
fn meaning(kind: ProgKind, r0: u64) -> &'static str {
    const XDP: [&str; 5] = ["XDP_ABORTED", "XDP_DROP", "XDP_PASS", "XDP_TX", "XDP_REDIRECT"];
    match (kind, usize::try_from(r0)) {
        (ProgKind::Xdp, Ok(n)) => XDP.get(n).copied().unwrap_or(""),
        _ => "",
    }
}

/// What is in every map and section that is not as it was.
fn changes(now: &RunState, before: &RunState) -> String {
    let mut text = String::new();
    for (now, _) in now.maps.iter().zip(&before.maps).filter(|(now, old)| now != old) {
        let _ = writeln!(text, "map {}, {} elements:", now.name, now.entries.len());
        for (key, value) in &now.entries {
            let _ = writeln!(text, "  key {}  value {}", spaced(key), spaced(value));
        }
    }
    for ((name, now), _) in now.sections.iter().zip(&before.sections).filter(|(now, old)| now != old) {
        let _ = writeln!(text, "section {name}:\n{}", hexdump(now).trim_end());
    }
    text
}

/// What happened to one packet.
fn told(program: &Program, packet: &[u8], world: &Interp<KernelHost>, outcome: &Result<Outcome, Fault>) -> String {
    let mut text = String::new();
    let _ = match outcome {
        Ok(Outcome { r0, steps }) => {
            let r0 = if program.kind().hook_bits() == 32 { u64::from(*r0 as u32) } else { *r0 };
            let meaning = meaning(program.kind(), r0);
            let meaning = if meaning.is_empty() { String::new() } else { format!(" ({meaning})") };
            writeln!(text, "r0 = {r0:#x}{meaning}, {steps} instructions")
        }
        Err(fault) if is_limit(fault) => writeln!(text, "not finished: {fault}"),
        Err(fault) => writeln!(text, "fault: {fault}"),
    };
    if matches!(program.kind(), ProgKind::Xdp | ProgKind::Skb) {
        if !world.host.metadata().is_empty() {
            let _ = writeln!(text, "metadata:\n{}", hexdump(world.host.metadata()).trim_end());
        }
        let now = world.host.packet();
        let changed = if now == packet { "unchanged" } else { "changed" };
        let _ = writeln!(text, "packet, {} bytes, {changed}:\n{}", now.len(), hexdump(now).trim_end());
    }
    if !world.cpu.trace.is_empty() {
        text.push_str("calls:\n");
        text.extend(world.cpu.trace.iter().map(call));
    }
    for output in &world.host.outputs {
        let _ = writeln!(
            text,
            "sent through {}, {} bytes:\n{}",
            output.map,
            output.bytes.len(),
            hexdump(&output.bytes).trim_end()
        );
    }
    text
}

fn call(event: &Event) -> String {
    let arg = |(i, arg): (usize, &ArgValue)| {
        let read = event.memory.iter().find(|(n, _)| *n == i + 1).map(|(_, bytes)| format!("[{}]", spaced(bytes)));
        match (arg, read) {
            (_, Some(bytes)) => bytes,
            (ArgValue::Plain(v), None) => format!("{v:#x}"),
            (ArgValue::StackBuffer, None) => "stack".to_owned(),
            (ArgValue::Uninitialised, None) => "?".to_owned(),
        }
    };
    let args: Vec<String> = event.args.iter().enumerate().map(arg).collect();
    format!("  {}({})\n", event.call, args.join(", "))
}

fn spaced(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" ")
}

/// Sixteen bytes a line: offset, digits, characters.
fn hexdump(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (i, row) in bytes.chunks(16).enumerate() {
        let letters: String =
            row.iter().map(|b| if b.is_ascii_graphic() || *b == b' ' { char::from(*b) } else { '.' }).collect();
        let _ = writeln!(text, "  {:04x}  {:<47}  {letters}", i * 16, spaced(row));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hexdump_row_has_sixteen_bytes() {
        let dump = hexdump(b"0123456789abcdef\x00A");
        assert_eq!(
            dump,
            "  0000  30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66  0123456789abcdef\n\
             \x20 0010  00 41                                            .A\n"
        );
    }
}
