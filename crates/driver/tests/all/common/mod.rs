//! Traps: wrong rewrites that look right, and how they are judged.
//!
//! As in Alive2: next to each wrong rewrite stands, where there is one, a right one that does what the wrong
//! one tried. A wrong one must be refuted by an input on which both versions were run and differed; a right
//! one must be proven. Rewrites that only break the rules for shared memory and the stack have no such input:
//! of those it is enough that they are not proven.
//!
//! The two versions of a body take the place of a function of a host object. Instructions are separated by `;`.
//! `r1 = &name` is the address of a map, a global, a kconfig value or a function, `call name` calls a subprogram,
//! `r1 = core` is the host's first instruction with a CO-RE record, and `r1 = core field` (`type`, `enum`) its
//! first that asks whether such a thing exists.

use std::time::Duration;

use bpf_driver::{FunctionVerdict, Options, verify};
use bpf_isa::{Insn, encode, parse_listing};
use bpf_object::{FuncId, NewInsn, Object, RefKind, WriteOptions};

/// A rewrite that goes wrong, and perhaps one that goes right.
pub struct Trap {
    pub name: &'static str,
    pub host: &'static str,
    pub old: String,
    pub wrong: String,
    pub right: Option<String>,
}

impl Trap {
    pub fn right(self, text: impl Into<String>) -> Trap {
        Trap { right: Some(text.into()), ..self }
    }
}

pub fn trap(name: &'static str, host: &'static str, old: impl Into<String>, wrong: impl Into<String>) -> Trap {
    Trap { name, host, old: old.into(), wrong: wrong.into(), right: None }
}

/// `body` with r6 pointing to the element of `map` with key 1; it may jump to `out`, which returns 2.
pub fn found(map: &str, body: &str) -> String {
    format!(
        "*(u32 *)(r10 - 4) = 1; r2 = r10; r2 += -4; r1 = &{map}; call 1; if r0 == 0 goto out; r6 = r0;
         {body}; out: w0 = 2; exit"
    )
}

/// The host object with this body in place of `host`'s.
pub fn object(bytes: &[u8], host: &str, text: &str) -> Vec<u8> {
    let mut object = Object::parse(bytes.to_vec()).expect("the host is an object");
    let f = object.function_named(host).expect("the host has the function");
    let code = object.code(f).to_vec();
    let mut lines = Vec::new();
    let mut borrowed = Vec::new();
    for line in text.split([';', '\n']).map(str::trim).filter(|l| !l.is_empty()) {
        let (label, insn) = match line.split_once(": ") {
            Some((label, insn)) => (format!("{label}: "), insn),
            None => (String::new(), line),
        };
        let from = reference(&object, f, insn);
        // What is borrowed has its bytes already; the parser only has to see its size.
        let stand_in = match from {
            None => insn,
            Some(slot) if code[slot * 8] == 0x18 => "r0 = 0 ll",
            Some(_) => "r0 = 0",
        };
        lines.push(label + stand_in);
        borrowed.push((from, insn));
    }
    let listing = lines.join("\n");
    let insns: Vec<Insn> = parse_listing(&listing).unwrap_or_else(|e| panic!("{e} of\n{listing}"));
    assert_eq!(insns.len(), borrowed.len(), "each line is an instruction:\n{listing}");
    let body = insns.iter().zip(&borrowed).map(|(insn, (from, text))| match *from {
        None => {
            let mut bytes = Vec::new();
            encode(insn, &mut bytes).expect("what was parsed can be encoded");
            NewInsn { bytes, origin: None, refs_from: None }
        }
        Some(slot) => {
            let mut bytes = code[slot * 8..(slot + insn.slots()) * 8].to_vec();
            if let Some(register) = text.strip_prefix('r').and_then(|t| t.split(' ').next()) {
                bytes[1] = bytes[1] & 0xf0 | register.parse::<u8>().expect("a register");
            }
            NewInsn { bytes, origin: None, refs_from: Some(slot) }
        }
    });
    let body = body.collect();
    object.set_body(f, body).unwrap_or_else(|e| panic!("{e} of\n{text}"));
    object.write(&WriteOptions::default()).expect("it can be written").bytes
}

/// The slot of the host whose reference an instruction borrows, if it does.
fn reference(object: &Object, f: FuncId, insn: &str) -> Option<usize> {
    if let Some((_, what)) = insn.split_once("= core") {
        // `enum bpf_core_relo_kind`.
        let kind = match what.trim() {
            "field" => Some(2),
            "type" => Some(8),
            "enum" => Some(10),
            _ => None,
        };
        let found = object.core_relocs(f).iter().find(|r| kind.is_none_or(|k| r.kind == k));
        return Some(found.expect("the host has such a CO-RE record").slot);
    }
    let (name, call) = match (insn.split_once("= &"), insn.strip_prefix("call ")) {
        (Some((_, name)), _) => (name, false),
        (_, Some(name)) if !name.starts_with(|c: char| c.is_ascii_digit()) => (name, true),
        _ => return None,
    };
    let is = |id: FuncId| object.functions()[id.0].name == name;
    let found = object.refs(f).iter().find(|r| match &r.kind {
        RefKind::Map { map, .. } => object.maps()[*map].name == name,
        RefKind::Data { symbol, .. } => symbol == name,
        RefKind::Extern { name: symbol } => !call && symbol == name,
        RefKind::FuncAddr { target } => !call && is(*target),
        RefKind::Call { target } => call && is(*target),
        _ => false,
    });
    Some(found.unwrap_or_else(|| panic!("the host has no reference to {name}")).slot)
}

/// What `verify` says of `new` in place of `old`, both as the body of `host` in the object of these bytes.
pub fn judge(bytes: &[u8], host: &str, old: &str, new: &str, strict: bool) -> FunctionVerdict {
    verdict(bytes, host, old, new, strict, false)
}

/// The same, by proof alone or after runs.
fn verdict(bytes: &[u8], host: &str, old: &str, new: &str, strict: bool, run_check: bool) -> FunctionVerdict {
    let options = Options {
        run_check,
        programs: vec![host.to_string()],
        time_limit: Duration::from_secs(60),
        strict_shared_memory: strict,
        ..Options::default()
    };
    let report = verify(&object(bytes, host, old), &object(bytes, host, new), &options).expect("both can be read");
    let [(_, verdict)] = &report.functions[..] else { panic!("one function was asked for: {report:?}") };
    verdict.clone()
}

/// What a refutation must have: two different outcomes, and where they part.
fn replayed(explanation: &[String]) -> Result<&str, String> {
    let line =
        |what: &str| explanation.iter().find_map(|l| l.strip_prefix(what)).ok_or_else(|| format!("no line `{what}`"));
    let (old, new, difference) = (line("old: ")?, line("new: ")?, line("first difference: ")?);
    if old == new { Err(format!("both {old}; yet {difference}")) } else { Ok(difference) }
}

/// Every wrong rewrite is refuted by a run.
pub fn all_refuted(bytes: &[u8], traps: &[Trap]) {
    let mut bad = Vec::new();
    for t in traps {
        let verdict = judge(bytes, t.host, &t.old, &t.wrong, false);
        let (word, detail) = match &verdict {
            FunctionVerdict::Different { explanation } => match replayed(explanation) {
                Ok(difference) => ("refuted", difference.to_string()),
                Err(why) => ("NOT SHOWN", why),
            },
            FunctionVerdict::Equal => ("EQUAL", "a wrong rewrite was proven".into()),
            FunctionVerdict::Unknown { reason } => ("UNKNOWN", reason.clone()),
        };
        println!("{word:<9} {:<58} {detail}", t.name);
        if word != "refuted" {
            bad.push(format!("{}: {word}: {detail}", t.name));
        }
    }
    println!("{} of {} wrong rewrites refuted by a run", traps.len() - bad.len(), traps.len());
    assert!(bad.is_empty(), "{} not refuted:\n{}", bad.len(), bad.join("\n"));
}

/// Every right rewrite is proven, and no run shows a difference.
pub fn all_proven(bytes: &[u8], traps: &[Trap]) {
    let mut bad = Vec::new();
    for t in traps {
        let Some(right) = &t.right else { continue };
        match judge(bytes, t.host, &t.old, right, false) {
            FunctionVerdict::Equal => println!("equal     {}", t.name),
            other => bad.push(format!("{}: {other:?}", t.name)),
        }
        if let different @ FunctionVerdict::Different { .. } = verdict(bytes, t.host, &t.old, right, false, true) {
            bad.push(format!("{}: {different:?}", t.name));
        }
    }
    assert!(bad.is_empty(), "{} not proven:\n{}", bad.len(), bad.join("\n"));
}
