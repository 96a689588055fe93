//! Whole functions against the interpreter: random programs with branches and loops, changed in one or
//! two places; what is proven equal must make the same calls and return the same on every input.

use std::cell::RefCell;

use bpf_facts::Env;
use bpf_isa::Reg;
use bpf_program::{ByteOrder, Function, ProgKind};
use bpf_prove::{Options, functions};
use bpf_semantics::interp::{Fault, Interp, Oracle};
use bpf_testgen::listing::linked;

use crate::common::{Rng, mix, rounds};

fn function(lines: &[String]) -> Option<Function> {
    linked(ProgKind::Subprogram, &lines.join("\n"), |_| None).ok()
}

/// The calls with their arguments, and r0.
type Trace = (Vec<[Option<u64>; 5]>, u64);

/// The function for a machine of this byte order.
fn in_order(f: &Function, byte_order: ByteOrder) -> Function {
    Function { byte_order, ..f.clone() }
}

fn run(f: &Function, a: u64, b: u64) -> Result<Trace, Fault> {
    let calls = RefCell::new(Vec::new());
    let oracle = Oracle::new(|_| 0).on_call(|_, cpu, _| {
        let args = [1, 2, 3, 4, 5].map(|r| Reg::new(r).and_then(|r| cpu.register(r)));
        let n = calls.borrow().len() as u64;
        calls.borrow_mut().push(args);
        cpu.set(Reg::R0, mix(n ^ args[0].unwrap_or(0)) & 0xff_ffff_ffff);
        Ok(())
    });
    let mut interp = Interp::new(oracle.in_order(f.byte_order));
    (0..10).filter_map(Reg::new).for_each(|r| interp.cpu.set(r, mix(a ^ r.index() as u64)));
    interp.cpu.set(Reg::R1, a);
    interp.cpu.set(Reg::R2, b);
    let r0 = interp.run(f, 5_000)?.r0;
    drop(interp);
    Ok((calls.into_inner(), r0))
}

fn operation(rng: &mut Rng) -> String {
    let reg = |rng: &mut Rng| rng.one_of(&[0, 1, 2, 3, 4, 5, 6, 7]);
    let (d, s, k) = (reg(rng), reg(rng), rng.one_of(&[0, 1, 2, 7, 8, 31, 255, -1, -5, 65535]));
    let w = rng.one_of(&["r", "r", "w"]);
    let op = rng.one_of(&["+=", "-=", "&=", "|=", "^=", "="]);
    let slot = rng.one_of(&[8, 16, 24]);
    match rng.below(9) {
        0..=2 => format!("{w}{d} {op} {w}{s}"),
        3 | 4 => format!("{w}{d} {op} {k}"),
        5 => format!("{w}{d} {} {}", rng.one_of(&["<<=", ">>=", "s>>="]), rng.one_of(&[1, 8, 16, 31])),
        6 => format!("*(u64 *)(r10 - {slot}) = r{s}"),
        7 => format!("*(u32 *)(r10 - {slot}) = {}", k.max(0)),
        _ => format!("r{d} = *({} *)(r10 - {slot})", rng.one_of(&["u64", "u32", "u16"])),
    }
}

fn condition(rng: &mut Rng) -> String {
    let w = rng.one_of(&["r", "w"]);
    let cond = rng.one_of(&["==", "!=", "<", ">", "s<", "s>=", "&"]);
    let (d, s, k) = (rng.below(8), rng.below(8), rng.one_of(&[0, 1, 7, 31, 255, -1]));
    if rng.chance(2) { format!("{w}{d} {cond} {w}{s}") } else { format!("{w}{d} {cond} {k}") }
}

/// Nested sequences, diamonds and counted loops; r8 and r9 count.
fn body(rng: &mut Rng, depth: u64, out: &mut Vec<String>) {
    for _ in 0..1 + rng.below(4) {
        match rng.below(if depth < 2 { 8 } else { 4 }) {
            0..=3 => out.push(operation(rng)),
            4 => {
                out.push("call 12345".into());
                out.extend((1..6).map(|r| format!("r{r} = {r}")));
            }
            5 | 6 => {
                let (mut yes, mut no) = (vec![], vec![]);
                body(rng, depth + 1, &mut yes);
                body(rng, depth + 1, &mut no);
                out.push(format!("if {} goto +{}", condition(rng), no.len() + 1));
                out.append(&mut no);
                out.push(format!("goto +{}", yes.len()));
                out.append(&mut yes);
            }
            _ => {
                let counter = 8 + depth;
                let mut inner = vec![];
                body(rng, depth + 1, &mut inner);
                out.push(format!("r{counter} = 0"));
                let n = inner.len();
                out.append(&mut inner);
                out.push(format!("r{counter} += 1"));
                out.push(format!("if r{counter} < {} goto -{}", 1 + rng.below(3), n + 2));
            }
        }
    }
}

fn program(rng: &mut Rng) -> Vec<String> {
    let mut p: Vec<String> = vec!["r6 = r1".into(), "r7 = r2".into()];
    p.extend([8, 16, 24].map(|s| format!("*(u64 *)(r10 - {s}) = 0")));
    p.extend([0, 3, 4, 5, 8, 9].map(|r| format!("r{r} = {}", r * r)));
    body(rng, 0, &mut p);
    p.push(if rng.chance(2) { "r0 ^= r6" } else { "w0 += w7" }.into());
    p.push("exit".into());
    p
}

/// Another program, mostly not the same.
fn changed(rng: &mut Rng, p: &[String]) -> Vec<String> {
    let mut q = p.to_vec();
    for _ in 0..1 + rng.below(2) {
        let i = rng.below(q.len() as u64 - 1) as usize;
        let line = q[i].clone();
        let shape = line.clone();
        q[i] = match rng.below(7) {
            0 if !line.contains("goto") && !line.contains("call") => "r0 = r0".into(),
            1 => line.replace("r0", "w0").replace("r1 ", "w1 ").replace("r2", "w2").replace("r6", "w6"),
            2 => ["r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7"]
                .iter()
                .fold(line, |l, r| if rng.chance(4) { l.replace(r, &r.replace('r', "w")) } else { l }),
            3 if line.starts_with("if ") => {
                let turned = [("==", "!="), ("!=", "=="), (" < ", " <= "), ("s<", "<"), ("s>=", ">="), (" > ", " >= ")];
                turned.iter().find(|(a, _)| line.contains(a)).map_or(shape.clone(), |(a, b)| line.replacen(a, b, 1))
            }
            4 if !line.contains("goto") && !line.contains("call") && !line.contains("r8 ") && !line.contains("r9 ") => {
                operation(rng)
            }
            5 => line.replace("+1", "+2").replace("goto +2", "goto +3"),
            _ => line.replace("u64", "u32").replace(" 1", " 2"),
        };
    }
    q
}

#[test]
fn what_is_proven_runs_the_same() {
    proven_runs_the_same(ByteOrder::Little, rounds(300));
}

#[test]
fn what_is_proven_runs_the_same_on_a_big_endian_machine() {
    proven_runs_the_same(ByteOrder::Big, rounds(100));
}

fn proven_runs_the_same(byte_order: ByteOrder, count: u64) {
    let env = Env { byte_order, ..Env::empty() };
    let mut rng = Rng::new(0x5eed);
    let (mut proven, mut refused) = (0, 0);
    for round in 0..count {
        let old = program(&mut rng);
        let Some(f) = function(&old) else { panic!("round {round}: {}", old.join("\n")) };
        let f = in_order(&f, byte_order);
        for _ in 0..3 {
            let new = changed(&mut rng, &old);
            let Some(g) = function(&new).map(|g| in_order(&g, byte_order)) else { continue };
            if new == old || !functions(&f, &g, &env, &Options::default()).0.is_equal() {
                refused += 1;
                continue;
            }
            proven += 1;
            for k in 0..12 {
                let (a, b) = if k < 4 { (k & 1, k >> 1) } else { (rng.number(64), rng.number(64)) };
                let (Ok(x), y) = (run(&f, a, b), run(&g, a, b)) else { continue };
                // Reading what a call clobbered is refused by the verifier, and by the interpreter.
                if matches!(y, Err(Fault::Uninitialised(_))) {
                    continue;
                }
                assert_eq!(Ok(x), y, "r1 {a:#x} r2 {b:#x}\n{}\n--- round {round}\n{}", old.join("\n"), new.join("\n"));
            }
        }
    }
    println!("{proven} proven, {refused} not");
    assert!(proven > count / 3, "{proven} of {refused}: too few to tell");
}
