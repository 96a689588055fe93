//! Broken programs: real ones with random changes, judged by us and by the kernel.
//!
//! `BPF_OPT_MUTANTS` says how many, `BPF_OPT_SEED` which.

use std::collections::BTreeMap;

use bpf_check::{Program, Report, SafetyVerdict, Target, programs};
use bpf_driver::agreement::{create, load_linked};
use bpf_isa::{AluOp, Call, Cond, Insn, Reg, Size, Src};
use bpf_kernel::testing::permitted;
use bpf_kernel::{Map, ProgramType};
use bpf_object::Object;

use crate::common::{fixtures, root};

/// Mutants in `make test`.
const MUTANTS: u64 = 1500;
/// Of a hundred verdicts, so many must agree.
const LEAST: usize = 95;
/// Longer programs are left to the other test.
const LONGEST: usize = 2000;

struct Random(fastrand::Rng);

impl Random {
    fn new(seed: u64) -> Random {
        Random(fastrand::Rng::with_seed(seed))
    }

    fn next(&mut self) -> u64 {
        self.0.u64(..)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
    fn reg(&mut self) -> Reg {
        Reg::new(self.below(11) as u8).expect("a register")
    }
    fn near(&mut self, v: i64) -> i64 {
        match self.below(5) {
            0 => v + 1,
            1 => v - 1,
            2 => v + self.pick(&[-8, -4, 4, 8, 16, 64]),
            3 => -v,
            _ => self.pick(&[0, 1, -1, 7, 8, 14, 15, 16, 64, 255, 256, 511, 512, 1 << 16, 1 << 31]),
        }
    }
}

fn seeds() -> Vec<Program> {
    let mut all: Vec<Program> =
        ["accepted", "rejected"].iter().flat_map(|d| fixtures(d)).map(|f| f.program()).collect();
    for folder in ["examples", "../shared/bench/k2", "../shared/bench/public"] {
        let mut files: Vec<_> =
            std::fs::read_dir(root().join(folder)).into_iter().flatten().flatten().map(|e| e.path()).collect();
        files.sort();
        for path in files.iter().filter(|p| p.extension().is_some_and(|e| e == "o")) {
            let Ok(object) = Object::parse(std::fs::read(path).expect("readable")) else { continue };
            for f in programs(&object) {
                let section = &object.functions()[f.0].section;
                let kinds = ProgramType::usual(section);
                let Some(&(kind, attach)) = kinds.first() else { continue };
                let mut p = Program::link(&object, f, kind, attach);
                // Without the object's BTF: no global functions, no contents of constants.
                p.maps.iter_mut().for_each(|m| m.frozen = None);
                let plain = p.slots.iter().all(|s| !matches!(s.target, Target::Unknown(_)));
                if plain && p.slots.len() <= LONGEST && p.subs.iter().all(|s| !s.global) {
                    all.push(p);
                }
            }
        }
    }
    all
}

fn mutate(insn: Insn, r: &mut Random) -> Insn {
    let off = |r: &mut Random, off: i16| r.near(off.into()) as i16;
    let src = |r: &mut Random, src: Src| match src {
        Src::Reg(_) if r.below(4) > 0 => Src::Reg(r.reg()),
        Src::Imm(i) if r.below(4) > 0 => Src::Imm(r.near(i.into()) as i32),
        Src::Reg(_) => Src::Imm(r.near(0) as i32),
        Src::Imm(_) => Src::Reg(r.reg()),
    };
    match insn {
        Insn::Alu { op, width, dst, src: s } => match r.below(4) {
            0 => Insn::Alu { op: r.pick(&AluOp::ALL), width, dst, src: s },
            1 => Insn::Alu { op, width, dst: r.reg(), src: s },
            _ => Insn::Alu { op, width, dst, src: src(r, s) },
        },
        Insn::Mov { width, dst, src: s } => match r.below(2) {
            0 => Insn::Mov { width, dst: r.reg(), src: s },
            _ => Insn::Mov { width, dst, src: src(r, s) },
        },
        Insn::Load { size, sext, dst, base, off: o } => match r.below(4) {
            0 => Insn::Load { size: r.pick(&Size::ALL), sext, dst, base, off: o },
            1 => Insn::Load { size, sext, dst: r.reg(), base, off: o },
            2 => Insn::Load { size, sext, dst, base: r.reg(), off: o },
            _ => Insn::Load { size, sext, dst, base, off: off(r, o) },
        },
        Insn::Store { size, base, off: o, src: s } => match r.below(4) {
            0 => Insn::Store { size: r.pick(&Size::ALL), base, off: o, src: s },
            1 => Insn::Store { size, base: r.reg(), off: o, src: s },
            2 => Insn::Store { size, base, off: o, src: src(r, s) },
            _ => Insn::Store { size, base, off: off(r, o), src: s },
        },
        Insn::Atomic { op, size, base, off: o, src: s } => match r.below(3) {
            0 => Insn::Atomic { op, size, base: r.reg(), off: o, src: s },
            1 => Insn::Atomic { op, size, base, off: o, src: r.reg() },
            _ => Insn::Atomic { op, size, base, off: off(r, o), src: s },
        },
        Insn::Jcc { cond, width, dst, src: s, off: o } => match r.below(4) {
            0 => Insn::Jcc { cond: r.pick(&Cond::ALL), width, dst, src: s, off: o },
            1 => Insn::Jcc { cond, width, dst: r.reg(), src: s, off: o },
            2 => Insn::Jcc { cond, width, dst, src: s, off: off(r, o) },
            _ => Insn::Jcc { cond, width, dst, src: src(r, s), off: o },
        },
        Insn::Ja { off, long } => Insn::Ja { off: off + r.pick(&[-2, -1, 1, 2]), long },
        Insn::Call(Call::Helper(_)) if r.below(2) == 0 => Insn::Call(Call::Helper(
            r.pick(&[1, 2, 3, 5, 6, 7, 8, 12, 14, 16, 25, 26, 44, 51, 65, 86, 112, 130, 131, 132]),
        )),
        // Functions stay functions.
        Insn::LoadImm64 { .. } | Insn::Call(Call::Local(_)) => insn,
        _ => Insn::Mov { width: bpf_isa::Width::W64, dst: Reg::R0, src: Src::Imm(0) },
    }
}

/// A program with some instructions changed; its jumps and calls count as before.
fn mutant(seed: &Program, r: &mut Random) -> Program {
    let mut p = seed.clone();
    for _ in 0..1 + r.below(3) {
        let at = r.below(p.slots.len());
        let Some(insn) = p.slots[at].insn else { continue };
        let new = if r.below(8) == 0 && !matches!(insn, Insn::Call(Call::Local(_))) {
            Insn::Ja { off: 0, long: false }
        } else {
            mutate(insn, r)
        };
        if new.slots() == insn.slots() {
            p.slots[at].insn = Some(new);
            if !matches!(new, Insn::LoadImm64 { .. } | Insn::Call(Call::Local(_))) {
                p.slots[at].target = Target::None;
            }
        }
    }
    p
}

#[test]
fn mutants_get_the_same_verdicts() {
    if !permitted() {
        return;
    }
    let number = |key: &str, or: u64| std::env::var(key).ok().and_then(|v| v.parse().ok()).unwrap_or(or);
    let (count, seed) = (number("BPF_OPT_MUTANTS", MUTANTS), number("BPF_OPT_SEED", 1));
    let mut r = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let usable = |p: Program| {
        let maps: Option<Vec<Map>> = p.maps.iter().map(create).collect();
        maps.map(|maps| (p, maps))
    };
    let seeds: Vec<(Program, Vec<Map>)> = seeds().into_iter().filter_map(usable).collect();
    assert!(seeds.len() > 100, "only {} programs to start from", seeds.len());
    let (mut agreed, mut accepted, mut unsure, mut differ) = (0, 0, 0, Vec::new());
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for case in 0..count {
        let (p, maps) = &seeds[r.below(seeds.len())];
        let p = mutant(p, &mut r);
        let ours = Report::of(&p);
        if ours.verdict == SafetyVerdict::CannotTell {
            unsure += 1;
            continue;
        }
        let Some(kernel) = load_linked(&p, maps) else { continue };
        // The kernel's memory or its patience with logs is no verdict; nor is the BTF that raw programs lack.
        if kernel
            .as_ref()
            .err()
            .is_some_and(|log| log.trim().is_empty() || log.contains("without BTF") || log.contains("missing btf"))
        {
            continue;
        }
        accepted += usize::from(kernel.is_ok());
        if kernel.is_ok() == (ours.verdict == SafetyVerdict::Accepted) {
            agreed += 1;
            continue;
        }
        let why = ours.problem.map_or(String::new(), |q| {
            let insn = p.slots.get(q.slot).and_then(|s| s.insn).map_or(String::new(), |i| i.to_string());
            format!("at {}: {insn}: {}", q.slot, q.what)
        });
        let log = kernel.err().unwrap_or_default();
        let tail: Vec<&str> =
            log.lines().rev().filter(|l| !l.starts_with("processed") && !l.is_empty()).take(3).collect();
        *kinds.entry(format!("{why}{}", tail.first().unwrap_or(&""))).or_default() += 1;
        if std::env::var_os("BPF_OPT_TRACE").is_some() {
            for (at, slot) in p.slots.iter().enumerate() {
                println!("{at}: {}", slot.insn.map_or(String::new(), |i| i.to_string()));
            }
        }
        differ.push(format!("case {case}, {} {}: ours {:?} {why}; kernel {tail:?}", p.section, p.name, ours.verdict));
    }
    println!("{agreed} of {} agree ({accepted} accepted by the kernel), {unsure} unsure", agreed + differ.len());
    println!("{}", differ.join("\n"));
    assert!(agreed * 100 >= (agreed + differ.len()) * LEAST, "{}", differ.join("\n"));
}
