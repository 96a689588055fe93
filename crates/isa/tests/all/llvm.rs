//! The text and the encoding against LLVM 19, where it is installed.
//!
//! LLVM judges in both directions: `llvm-objdump` prints our bytes and must print our text, and
//! `llvm-mc` assembles our text and must produce our bytes. The benchmark objects, where present,
//! serve as more bytes.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use bpf_isa::*;

use crate::common::variety;

/// The name under which LLVM 19's `tool` runs here, or `None` with a message.
fn llvm(tool: &str) -> Option<String> {
    let names = [format!("{tool}-19"), tool.to_string()];
    let found = names.into_iter().find(|name| {
        let version = Command::new(name).arg("--version").output();
        version.is_ok_and(|v| String::from_utf8_lossy(&v.stdout).contains("LLVM version 19."))
    });
    if found.is_none() {
        eprintln!("skipped: {tool} of LLVM 19 is not installed");
    }
    found
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The bytes and the text of every instruction `llvm-objdump -d` finds in an object.
fn disassemble(objdump: &str, object: &Path) -> Vec<(Vec<u8>, String)> {
    // The triple is for an object that does not name its machine.
    let listing = run(Command::new(objdump).args(["--triple=bpfel", "-d", "-z"]).arg(object));
    listing.lines().filter_map(disassembled_line).collect()
}

/// `   7:<tab>18 01 …<tab>text <symbol+offset>`
fn disassembled_line(line: &str) -> Option<(Vec<u8>, String)> {
    let (slot, rest) = line.split_once(":\t")?;
    slot.trim().parse::<usize>().ok()?;
    let (bytes, text) = rest.split_once('\t')?;
    let bytes = bytes.split_whitespace().map(|b| u8::from_str_radix(b, 16)).collect::<Result<_, _>>().ok()?;
    let text = text.rfind(" <").filter(|_| text.ends_with('>')).map_or(text, |at| &text[..at]);
    Some((bytes, text.to_string()))
}

/// Assembles `source` into an object that carries the name `name`.
fn assemble(mc: &str, name: &str, source: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (input, object) = (dir.join(format!("{name}.s")), dir.join(format!("{name}.o")));
    std::fs::write(&input, source).unwrap();
    run(Command::new(mc).args(["-triple", "bpfel", "-mcpu=v4", "--filetype=obj", "-o"]).arg(&object).arg(&input));
    object
}

fn bytes_of(insn: &Insn) -> Vec<u8> {
    encode_all(&[*insn]).unwrap()
}

/// What `llvm-objdump` 19 prints without `--mcpu`, where that is not our text: instructions it does
/// not know, or prints wrongly.
fn llvm_deviation(insn: &Insn) -> Option<String> {
    let addition = |size, base, off, src| Insn::Atomic { op: AtomicOp::Add { fetch: false }, size, base, off, src };
    match *insn {
        Insn::Atomic { op: AtomicOp::Add { fetch: false }, .. } => None,
        // Of the bits that tell these from an addition it looks at four only.
        Insn::Atomic { op: AtomicOp::Add { .. }, size: size @ Size::W, base, off, src } => {
            Some(addition(size, base, off, src).to_string())
        }
        Insn::LoadAcquire { size: size @ (Size::W | Size::DW), dst, base, off } => {
            Some(addition(size, dst, off, base).to_string())
        }
        Insn::Atomic { size: Size::W, .. } | Insn::LoadAcquire { .. } | Insn::StoreRelease { .. } => {
            Some("<unknown>".to_string())
        }
        Insn::LdInd { size, src, .. } => Some(Insn::LdInd { size, src, imm: 0 }.to_string()),
        _ => None,
    }
}

/// Whether `llvm-mc` 19 assembles our text to this very instruction.
fn assembles(insn: &Insn) -> bool {
    match *insn {
        Insn::LoadAcquire { .. } | Insn::StoreRelease { .. } => false,
        Insn::LdInd { imm, .. } => imm == 0,
        Insn::Ja { off, long: true } => i16::try_from(off).is_ok(),
        Insn::Call(call) => matches!(call, Call::Helper(_)),
        Insn::LoadImm64 { kind, .. } => kind == Imm64Kind::Const,
        _ => true,
    }
}

#[test]
fn llvm_prints_our_bytes_as_we_do() {
    let (Some(mc), Some(objdump)) = (llvm("llvm-mc"), llvm("llvm-objdump")) else { return };
    let insns = variety();
    let mut source = String::new();
    for byte in encode_all(&insns).unwrap() {
        writeln!(source, ".byte {byte}").unwrap();
    }
    let lines = disassemble(&objdump, &assemble(&mc, "bytes", &source));
    assert_eq!(lines.len(), insns.len());
    for (insn, (bytes, text)) in insns.iter().zip(lines) {
        assert_eq!(bytes, bytes_of(insn));
        assert_eq!(text, llvm_deviation(insn).unwrap_or_else(|| insn.to_string()), "{insn:?}");
    }
}

#[test]
fn llvm_assembles_our_text_as_we_do() {
    let (Some(mc), Some(objdump)) = (llvm("llvm-mc"), llvm("llvm-objdump")) else { return };
    let insns: Vec<Insn> = variety().into_iter().filter(assembles).collect();
    let mut source = String::new();
    for insn in &insns {
        writeln!(source, "{insn}").unwrap();
    }
    let lines = disassemble(&objdump, &assemble(&mc, "text", &source));
    assert_eq!(lines.len(), insns.len());
    for (insn, (bytes, _)) in insns.iter().zip(lines) {
        assert_eq!(bytes, bytes_of(insn), "{insn}");
    }
}

#[test]
fn benchmark_objects_print_as_llvm_prints_them() {
    let Some(objdump) = llvm("llvm-objdump") else { return };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/bench");
    let objects = objects_below(&folder);
    if objects.is_empty() {
        eprintln!("skipped: no benchmark objects in {}", folder.display());
    }
    for object in objects {
        for (bytes, text) in disassemble(&objdump, &object) {
            let (insn, slots) = decode(&bytes).unwrap();
            assert_eq!(slots * 8, bytes.len(), "{}: {text}", object.display());
            let expected = llvm_deviation(&insn).unwrap_or_else(|| insn.to_string());
            assert_eq!(text, expected, "{}: {insn:?}", object.display());
        }
    }
}

/// The `.o` files in the folders of `folder`.
fn objects_below(folder: &Path) -> Vec<PathBuf> {
    let list = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path());
    let files = list(folder).flat_map(|dir| list(&dir).collect::<Vec<_>>());
    let mut objects: Vec<PathBuf> = files.filter(|f| f.extension().is_some_and(|e| e == "o")).collect();
    objects.sort();
    objects
}
