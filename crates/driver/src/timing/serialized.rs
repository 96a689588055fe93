//! Copies of objects of which a run begins when the one before has ended, in the processor, too.
//!
//! In a test run nothing uses what a program makes, so an out-of-order core begins with the next repetition while it is still at work on
//! this one, and chains of operations that wait for each other cost next to nothing, however long. Where a program runs in earnest, other
//! code follows, which branches on the verdict. So in these copies the exits of a program go on with
//!
//! ```text
//! r1 = state ll                        ; in the section .data.serialize, of which the loader makes a map
//! *(u8 *)(r1 + 11) = 1
//! r2 = *(u64 *)(r1 + 0)
//! r2 = r2 * 6364136223846793005 + 1442695040888963407
//! *(u64 *)(r1 + 0) = r2
//! r3 = *(u64 *)(r1 + 8)
//! r3 &= 0
//! r3 ^= r2
//! if r3 s< 0 goto +1                   ; and so for BRANCHES bits
//! r2 = 0
//! r3 <<= 1
//! …
//! exit
//! ```
//!
//! The wide load cannot be given what a narrower store before it holds, so it waits until that is in the cache, and a store goes there
//! only when all operations before it have ended. The branches wait for the load, though its value does not matter, and
//! are on bits of a pseudo-random number (the congruential generator of Knuth's MMIX): half of them are predicted wrong, one at least
//! in fifteen of sixteen runs, and what follows begins when that is known. An empty program with the same behind it is what is taken off,
//! of runs that came to an exit: a legacy load behind the packet's end is none.

use std::collections::BTreeSet;

use bpf_isa::{AluOp, Cond, Imm64Kind, Insn, Reg, Size, Src, Width};
use bpf_kernel::{Map, ProgramType, RawProgram};
use bpf_object::{Addition, NewReference, NewSection, Object, SectionUse, WriteOptions};
use bpf_platform::maps;
use bpf_program::{Block, BlockId, Function, Op, Terminator};

use super::empty::{raw, verdict};
use crate::difftest::scenario::Loaded;
use crate::instrument::{lowered, marker};
use crate::module::{Module, is_program};

/// The section of the pseudo-random number, and of a word that is stored to and loaded.
pub(super) const SECTION: &str = ".data.serialize";
/// Its symbol.
const SYMBOL: &str = "bpf_opt_serialize";
/// Bytes of it.
const SIZE: usize = 4096;
/// Where in it the two are: not where the data of programs begins, lest loads take one address for the other by its lower bits.
const AT: usize = 2048;
/// Branches behind an exit.
const BRANCHES: usize = 4;
/// What the number is multiplied by.
const FACTOR: u64 = 6_364_136_223_846_793_005;
/// What is added to it then.
const INCREMENT: u64 = 1_442_695_040_888_963_407;
/// Brings the next bit to the front.
const SHIFT: Insn = Insn::Alu { op: AluOp::Lsh, width: Width::W64, dst: Reg::R3, src: Src::Imm(1) };
/// What a branch goes past.
const OTHER: Insn = Insn::Mov { width: Width::W64, dst: Reg::R2, src: Src::Imm(0) };

/// Objects with the programs that are serialized.
pub(super) struct Copies {
    /// In the order of the originals.
    pub objects: Vec<Vec<u8>>,
    /// The programs that are in all of them.
    pub programs: BTreeSet<String>,
}

/// Copies of these objects; a program is serialized in all of them or in none, and only if it is `wanted`. `None`: none can be.
pub(super) fn copies(objects: &[&[u8]], wanted: &BTreeSet<&str>) -> Option<Copies> {
    let of = |bytes: &&[u8]| {
        let object = Object::parse(bytes.to_vec()).ok()?;
        object.section(SECTION).is_none().then(|| Additions::to(Module::new(object)))
    };
    let all: Vec<Additions> = objects.iter().map(of).collect::<Option<_>>()?;
    let mut programs = all.first()?.names();
    programs.retain(|name| wanted.contains(name.as_str()));
    for other in &all[1..] {
        let names = other.names();
        programs.retain(|name| names.contains(name));
    }
    if programs.is_empty() {
        return None;
    }
    let objects = all.iter().map(|added| added.written(&programs)).collect::<Option<_>>()?;
    Some(Copies { objects, programs })
}

/// An object's programs with what is added to them.
struct Additions {
    module: Module,
    marker: u32,
    /// By number of the function.
    programs: Vec<(usize, Function)>,
}

impl Additions {
    fn to(module: Module) -> Additions {
        let marker = marker(&module);
        let mut scratch = module.object.clone();
        let programs = module.graphs.iter().enumerate().filter_map(|(number, graph)| {
            let f = graph.as_ref().ok().filter(|_| is_program(&module.object, number))?;
            let f = serialized(f, marker);
            lowered(&mut scratch, number, &f, marker, |_| 0).ok()?;
            Some((number, f))
        });
        let programs = programs.collect();
        Additions { module, marker, programs }
    }

    fn name(&self, number: usize) -> &str {
        &self.module.object.functions()[number].name
    }

    fn names(&self) -> BTreeSet<String> {
        self.programs.iter().map(|(number, _)| self.name(*number).to_owned()).collect()
    }

    /// The object with these programs serialized.
    fn written(&self, programs: &BTreeSet<String>) -> Option<Vec<u8>> {
        let mut object = self.module.object.clone();
        let mut references: Vec<NewReference> = Vec::new();
        for (number, f) in self.programs.iter().filter(|(number, _)| programs.contains(self.name(*number))) {
            references.extend(lowered(&mut object, *number, f, self.marker, |_| AT as u64).ok()?);
        }
        let (name, symbol) = (SECTION.to_owned(), SYMBOL.to_owned());
        let sections = vec![NewSection { name, symbol, bytes: vec![0; SIZE], is: SectionUse::Data }];
        let written = Object::parse(object.write(&WriteOptions::default()).ok()?.bytes).ok()?;
        written.with_addition(&Addition { sections, references, ..Addition::default() }).ok()
    }
}

/// The program that goes on behind its exits until all is done.
fn serialized(f: &Function, marker: u32) -> Function {
    let mut new = f.clone();
    let mut add = |ops: Vec<Op>, term| {
        new.blocks.push(Block { ops, term });
        new.layout.push(BlockId(new.blocks.len() as u32 - 1));
    };
    let first = f.blocks.len() as u32;
    let mut ops: Vec<Op> = drawn(Imm64Kind::Const, u64::from(marker) << 32).map(Op::new).into();
    for step in 0..BRANCHES as u32 {
        let (other, next) = (BlockId(first + 2 * step + 1), BlockId(first + 2 * step + 2));
        let (dst, src) = (Reg::R3, Src::Imm(0));
        let branch =
            Terminator::Branch { cond: Cond::Slt, width: Width::W64, dst, src, taken: next, fall: other, origin: None };
        add(ops, branch);
        add(vec![Op::new(OTHER)], Terminator::Goto(next));
        ops = vec![Op::new(SHIFT)];
    }
    add(ops, Terminator::Exit { origin: None });
    for &b in &f.layout {
        if matches!(f.block(b).term, Terminator::Exit { .. }) {
            new.block_mut(b).term = Terminator::Goto(BlockId(first));
        }
    }
    new
}

/// Leaves in r3 a pseudo-random number that is there when all before has ended; `state` is the address of its section.
fn drawn(kind: Imm64Kind, state: u64) -> [Insn; 11] {
    let alu = |op, dst, src| Insn::Alu { op, width: Width::W64, dst, src };
    let address = |dst, kind, imm| Insn::LoadImm64 { dst, kind, imm };
    let load = |dst, off| Insn::Load { size: Size::DW, sext: false, dst, base: Reg::R1, off };
    let store = |size, off, src| Insn::Store { size, base: Reg::R1, off, src };
    [
        address(Reg::R1, kind, state),
        store(Size::B, 11, Src::Imm(1)),
        load(Reg::R2, 0),
        address(Reg::R3, Imm64Kind::Const, FACTOR),
        alu(AluOp::Mul, Reg::R2, Src::Reg(Reg::R3)),
        address(Reg::R3, Imm64Kind::Const, INCREMENT),
        alu(AluOp::Add, Reg::R2, Src::Reg(Reg::R3)),
        store(Size::DW, 0, Src::Reg(Reg::R2)),
        load(Reg::R3, 8),
        alu(AluOp::And, Reg::R3, Src::Imm(0)),
        alu(AluOp::Xor, Reg::R3, Src::Reg(Reg::R2)),
    ]
}

/// The pseudo-random number of an object that is loaded; `None` if it has none that can be read.
pub(super) fn state(loaded: &Loaded, object: usize) -> Option<u64> {
    let map = loaded.maps.iter().find(|m| m.name == SECTION)?;
    let contents = map.contents(object);
    Some(u64::from_ne_bytes(contents.first()?.1.get(AT..AT + 8)?.try_into().ok()?))
}

/// The number after so many runs that came to an exit.
pub(super) fn after(state: u64, runs: u32) -> u64 {
    (0..runs).fold(state, |n, _| n.wrapping_mul(FACTOR).wrapping_add(INCREMENT))
}

/// An empty program with the same behind it; `None` if the kernel takes no such.
pub(super) fn empty(kind: ProgramType) -> Option<RawProgram> {
    // As the loader makes it.
    let state = Map::create_with(maps::ARRAY, 4, SIZE as u32, 1, maps::MMAPABLE, None).ok()?;
    let draw = drawn(Imm64Kind::MapValue, (AT as u64) << 32 | u64::from(state.fd().cast_unsigned()));
    let mut insns = vec![verdict(kind)];
    insns.extend(draw);
    let branch = Insn::Jcc { cond: Cond::Slt, width: Width::W64, dst: Reg::R3, src: Src::Imm(0), off: 1 };
    insns.extend((0..BRANCHES).flat_map(|_| [branch, OTHER, SHIFT]));
    insns.push(Insn::Exit);
    raw(kind, &insns)
}

#[cfg(test)]
mod tests {
    use bpf_kernel::testing::permitted;

    use super::*;
    use crate::difftest::{Input, Setup};

    const OBJECT: &[u8] = include_bytes!("../../../../examples/xdp_count.o");
    const OTHER_PROGRAMS: &[u8] = include_bytes!("../../../../examples/subprogs.o");

    /// Copies of all programs.
    fn copied(objects: &[&[u8]]) -> Option<Copies> {
        let names =
            |bytes: &&[u8]| Additions::to(Module::new(Object::parse(bytes.to_vec()).expect("an object"))).names();
        let names: BTreeSet<String> = objects.iter().flat_map(names).collect();
        copies(objects, &names.iter().map(String::as_str).collect())
    }

    #[test]
    fn programs_go_on_behind_their_exits() {
        let made = copied(&[OBJECT, OBJECT]).expect("a committed object");
        assert!(!made.programs.is_empty() && made.objects[0] == made.objects[1]);
        let slots = |bytes: &[u8]| {
            let object = Object::parse(bytes.to_vec()).expect("an object");
            object.functions().iter().map(|f| f.slots).sum::<usize>()
        };
        assert!(slots(&made.objects[0]) > slots(OBJECT));
        // Such a copy is not copied again, and objects without a program in common are taken as they are.
        assert!(copied(&[&made.objects[0]]).is_none());
        assert!(copied(&[OBJECT, OTHER_PROGRAMS]).is_none());
        assert!(copies(&[OBJECT], &BTreeSet::new()).is_none());
    }

    #[test]
    fn copies_do_what_their_originals_do() {
        if !permitted() {
            return;
        }
        for bytes in [OBJECT, OTHER_PROGRAMS] {
            let made = copied(&[bytes]).expect("a committed object");
            let loaded = Loaded::new(&[bytes, &made.objects[0]], &Setup::default(), None).expect("both load");
            let alone = Loaded::new(&[&made.objects[0]], &Setup::default(), None).expect("it loads");
            for program in &made.programs {
                for length in [14, 40, 64, 1400] {
                    let packet = (0..length).map(|i| (i * 7) as u8).collect();
                    let input = Input { packet, context: None };
                    let [of, copied] = [0, 1].map(|side| loaded.run(side, program, &input).expect("it runs"));
                    assert_eq!((of.retval, of.data_out), (copied.retval, copied.data_out), "{program}");
                    // Each run came to an exit.
                    let before = state(&alone, 0).expect("it has a number");
                    alone.repeat(0, program, &input, 100).expect("it runs");
                    assert_eq!(state(&alone, 0), Some(after(before, 100)), "{program}");
                }
            }
        }
    }

    #[test]
    fn an_empty_program_goes_on_likewise() {
        if permitted() {
            for kind in [ProgramType::XDP, ProgramType::SCHED_CLS, ProgramType::SOCKET_FILTER] {
                let program = empty(kind).expect("such a program");
                let ran = program.test_run(&[0; 64], None, 100).expect("it runs");
                assert_eq!(ran.retval, if kind == ProgramType::XDP { 2 } else { 0 }, "{kind}");
            }
        }
    }
}
