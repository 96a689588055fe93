//! The safety verifier: what a program must keep for it to be run as machine code (BPF+, section 7.1).
//!
//! It does not trust the compiler. A program is safe if every register is written before it is read, on every way; every branch
//! goes forward, so that it ends; every block, register and table that it names is there; and tables have the sizes that a lookup
//! takes for granted: with them, no slot is outside. [`verify_checks`] looks at a translation's plan of bounds checks: whatever
//! the packet, no load is reached without a check that covers it.

use rustc_hash::FxHashMap;

use crate::program::{BasicBlock, BlockId, End, Operation, Program, Register};
use crate::tables::Table;
use crate::tuples::MOST_WORDS;
use bpf_perfect_hash::PerfectHash;

/// Ends of bounds are at most this, so that base and end never wrap in 64 bits and code for them stays short.
pub(crate) const FURTHEST_END: u64 = 1 << 33;

/// Why a program is not run.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("block {block}, {}: {fault}", match operation { Some(i) => format!("operation {i}"), None => "its end".to_owned() })]
pub struct Unsafe {
    /// The block.
    pub block: usize,
    /// The operation of the block; `None`: its end.
    pub operation: Option<usize>,
    /// What is wrong there.
    pub fault: Fault,
}

/// What is wrong with an operation or an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// The program has no block.
    #[error("there is no block")]
    NoBlock,
    /// The program has fewer registers.
    #[error("there is no register v{0}")]
    NoRegister(u32),
    /// On some way nothing has written it.
    #[error("v{0} may be read before it is written")]
    Unwritten(u32),
    /// A loop, or not a block of the program.
    #[error("it goes to block {0}, which is no later block")]
    NotForward(usize),
    /// A load is of 1, 2 or 4 bytes.
    #[error("a load of {0} bytes")]
    Size(u8),
    /// Behind 2^33.
    #[error("a bound of {0} bytes")]
    FarBound(u64),
    /// The program has fewer tables.
    #[error("there is no table {0}")]
    NoTable(usize),
    /// The program has fewer maps.
    #[error("there is no map {0}")]
    NoMap(usize),
    /// The map's keys are of other words.
    #[error("a key of {0} words")]
    Key(usize),
    /// The lookup would leave it.
    #[error("the sizes of table {0} are not what a lookup needs")]
    TableSize(usize),
    /// A load that no check covers, on some way.
    #[error("nothing checks that the packet has {0} bytes there")]
    Unchecked(u64),
}

/// Whether a program is safe to translate.
///
/// # Errors
/// The first thing that is wrong.
pub(crate) fn verify(program: &Program) -> Result<(), Unsafe> {
    if program.blocks.is_empty() {
        return Err(Unsafe { block: 0, operation: None, fault: Fault::NoBlock });
    }
    for (block, BasicBlock { operations, end }) in program.blocks.iter().enumerate() {
        for (i, operation) in operations.iter().enumerate() {
            verify_operation(program, operation).map_err(|fault| Unsafe { block, operation: Some(i), fault })?;
        }
        verify_end(program, block, end).map_err(|fault| Unsafe { block, operation: None, fault })?;
    }
    verify_writes(program)
}

fn verify_operation(program: &Program, operation: &Operation) -> Result<(), Fault> {
    let mut beyond = operation.writes().filter(|r| r.0 >= program.registers);
    operation.reads(&mut |r| beyond = beyond.or((r.0 >= program.registers).then_some(r)));
    if let Some(r) = beyond {
        return Err(Fault::NoRegister(r.0));
    }
    match operation {
        Operation::Load { size, .. } if !matches!(size, 1 | 2 | 4) => Err(Fault::Size(*size)),
        Operation::Bound { end, .. } if *end > FURTHEST_END => Err(Fault::FarBound(*end)),
        _ => Ok(()),
    }
}

fn verify_end(program: &Program, block: usize, end: &End) -> Result<(), Fault> {
    let mut beyond = None;
    end.reads(&mut |r| beyond = beyond.or((r.0 >= program.registers).then_some(r)));
    if let Some(r) = beyond {
        return Err(Fault::NoRegister(r.0));
    }
    if let Some(to) = end.successors().iter().find(|to| to.0 <= block || to.0 >= program.blocks.len()) {
        return Err(Fault::NotForward(to.0));
    }
    match end {
        End::Lookup { keys, table, .. } => match program.tables.get(*table) {
            None => Err(Fault::NoTable(*table)),
            Some(t) if keys.len() != t.width() || !has_sizes(t) => Err(Fault::TableSize(*table)),
            Some(_) => Ok(()),
        },
        End::Member { map, key, .. } => match program.maps.get(*map) {
            None => Err(Fault::NoMap(*map)),
            Some(m) if m.field().words().len() != key.len() => Err(Fault::Key(key.len())),
            Some(_) => Ok(()),
        },
        _ => Ok(()),
    }
}

/// Whether no lookup leaves the table: a bitmap is compared with its end; a hash takes so many bits of a number for an index.
fn has_sizes(table: &Table) -> bool {
    const MOST: usize = 1 << 27;
    let is_power = |n: usize| n.is_power_of_two() && n <= MOST;
    let is_hash = |hash: &PerfectHash| is_power(hash.slots.len()) && is_power(hash.displacements.len());
    match table {
        Table::Bitmap { words, .. } => !words.is_empty() && words.len() <= MOST,
        Table::Hash(hash) => is_hash(hash),
        Table::Tuples(tuples) => {
            let slots = tuples.hash.slots.len();
            let has_width = (1..=MOST_WORDS).contains(&tuples.columns.len());
            is_hash(&tuples.hash) && has_width && tuples.columns.iter().all(|column| column.len() == slots)
        }
    }
}

/// Registers that some block reads without having written them, numbered. All others are written where they are read.
pub(crate) fn exposed(program: &Program) -> FxHashMap<Register, usize> {
    let mut exposed = FxHashMap::default();
    let mut written_in = vec![usize::MAX; program.registers as usize];
    for (i, block) in program.blocks.iter().enumerate() {
        for operation in &block.operations {
            operation.reads(&mut |r| note(&mut exposed, r, written_in[r.0 as usize] == i));
            if let Some(to) = operation.writes() {
                written_in[to.0 as usize] = i;
            }
        }
        block.end.reads(&mut |r| note(&mut exposed, r, written_in[r.0 as usize] == i));
    }
    exposed
}

fn note(exposed: &mut FxHashMap<Register, usize>, r: Register, is_written: bool) {
    if !is_written {
        let next = exposed.len();
        exposed.entry(r).or_insert(next);
    }
}

/// Every register is written before it is read, on every way: what is written on all ways to a block, block by block.
fn verify_writes(program: &Program) -> Result<(), Unsafe> {
    let exposed = exposed(program);
    let words = exposed.len().div_ceil(64);
    let mut entries: Vec<Option<Vec<u64>>> = vec![None; program.blocks.len()];
    entries[0] = Some(vec![0; words]);
    for (i, block) in program.blocks.iter().enumerate() {
        // A block that nothing goes to is never run.
        let Some(mut written) = entries[i].take() else { continue };
        let mut local: Vec<Register> = Vec::new();
        let mut missing = None;
        for (at, operation) in block.operations.iter().enumerate() {
            operation.reads(&mut |r| missing = missing.or(unwritten(&exposed, &written, r).map(|r| (Some(at), r))));
            match operation.writes() {
                Some(to) if exposed.contains_key(&to) => written[exposed[&to] / 64] |= 1 << (exposed[&to] % 64),
                Some(to) => local.push(to),
                None => {}
            }
        }
        block.end.reads(&mut |r| missing = missing.or(unwritten(&exposed, &written, r).map(|r| (None, r))));
        if let Some((operation, r)) = missing {
            return Err(Unsafe { block: i, operation, fault: Fault::Unwritten(r.0) });
        }
        for BlockId(to) in block.end.successors() {
            match &mut entries[to] {
                Some(all) => all.iter_mut().zip(&written).for_each(|(a, b)| *a &= b),
                None => entries[to] = Some(written.clone()),
            }
        }
    }
    Ok(())
}

/// A register that is read, if it may not be written yet. What is not exposed was written in the same block.
fn unwritten(exposed: &FxHashMap<Register, usize>, written: &[u64], r: Register) -> Option<Register> {
    exposed.get(&r).filter(|i| written[**i / 64] >> (**i % 64) & 1 == 0).map(|_| r)
}

/// How many bytes the captured part of a packet is known to have, from its start on and from where registers point.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Reach {
    start: u64,
    bases: Vec<(Register, u64)>,
}

impl Reach {
    /// So many bases are remembered.
    const BASES: usize = 8;

    /// Bytes that are known to be there from a base on. `None`: the base may itself be behind the end.
    pub(crate) fn of(&self, base: Option<Register>) -> Option<u64> {
        match base {
            None => Some(self.start),
            Some(base) => self.bases.iter().find(|(r, _)| *r == base).map(|(_, end)| *end),
        }
    }

    /// A check was passed.
    pub(crate) fn extend(&mut self, base: Option<Register>, end: u64) {
        match base {
            None => self.start = self.start.max(end),
            Some(base) => match self.bases.iter_mut().find(|(r, _)| *r == base) {
                Some((_, known)) => *known = end.max(*known),
                None => {
                    if self.bases.len() == Reach::BASES {
                        self.bases.remove(0);
                    }
                    self.bases.push((base, end));
                }
            },
        }
    }

    /// A register holds something else now.
    pub(crate) fn forget(&mut self, register: Register) {
        self.bases.retain(|(r, _)| *r != register);
    }

    /// What is known on this way and on another.
    pub(crate) fn meet(&mut self, other: &Reach) {
        self.start = self.start.min(other.start);
        self.bases.retain_mut(|(base, end)| match other.of(Some(*base)) {
            Some(known) => {
                *end = known.min(*end);
                true
            }
            None => false,
        });
    }
}

/// Which operations a translation checks before it executes them: by block and operation, how many bytes there must be from the
/// operation's base on. A packet that has fewer is rejected.
pub(crate) type Checks = Vec<Vec<Option<u64>>>;

/// Whether a translation's checks cover each load and bound on every way.
///
/// # Errors
/// The first operation that nothing covers.
pub(crate) fn verify_checks(program: &Program, checks: &Checks) -> Result<(), Unsafe> {
    let mut entries: Vec<Option<Reach>> = vec![None; program.blocks.len()];
    entries[0] = Some(Reach::default());
    for (block, BasicBlock { operations, end }) in program.blocks.iter().enumerate() {
        let Some(mut reach) = entries[block].take() else { continue };
        for (i, operation) in operations.iter().enumerate() {
            if let Some((base, wanted)) = operation.wants() {
                if let Some(end) = checks.get(block).and_then(|b| b.get(i).copied().flatten()) {
                    reach.extend(base, end);
                }
                if reach.of(base) < Some(wanted) {
                    return Err(Unsafe { block, operation: Some(i), fault: Fault::Unchecked(wanted) });
                }
            }
            operation.writes().into_iter().for_each(|to| reach.forget(to));
        }
        for BlockId(to) in end.successors() {
            match &mut entries[to] {
                Some(all) => all.meet(&reach),
                None => entries[to] = Some(reach.clone()),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::language::Binary;
    use crate::program::{Comparison, Operand};

    /// Reads a base, loads from there, and looks the byte up on one way.
    fn safe() -> Program {
        let load = |to, base, offset, size| Operation::Load { to: Register(to), base, offset, size };
        let end = |end| BasicBlock { operations: Vec::new(), end };
        let branch = End::Branch {
            a: Register(0),
            comparison: Comparison::Greater(Operand::Constant(5)),
            yes: BlockId(1),
            no: BlockId(2),
        };
        let lookup = End::Lookup { keys: vec![Register(1)], table: 0, yes: BlockId(2), no: BlockId(3) };
        let hash = Table::hash(&[4, 5, 6]).expect("a table");
        let bitmap = Table::Bitmap { first: 32, words: vec![5] };
        Program {
            blocks: vec![
                BasicBlock { operations: vec![load(0, None, 14, 1)], end: branch },
                BasicBlock { operations: vec![load(1, Some(Register(0)), 20, 4)], end: lookup },
                end(End::Accept),
                end(End::Reject),
            ],
            registers: 2,
            tables: vec![hash, bitmap],
            maps: Default::default(),
            predicates: 0,
        }
    }

    /// What is wrong with the program once it is damaged.
    fn fault(damage: impl FnOnce(&mut Program)) -> (usize, Option<usize>, Fault) {
        let mut program = safe();
        verify(&program).expect("a safe program");
        damage(&mut program);
        let Unsafe { block, operation, fault } = verify(&program).expect_err("an unsafe program");
        (block, operation, fault)
    }

    #[test]
    fn registers_are_written_before_they_are_read() {
        assert_eq!(fault(|p| p.blocks[0].operations.clear()), (0, None, Fault::Unwritten(0)));
        assert_eq!(fault(|p| p.blocks[1].operations.clear()), (1, None, Fault::Unwritten(1)));
        let own = |to, from| Operation::Copy { to: Register(to), from: Register(from) };
        assert_eq!(fault(|p| p.blocks[0].operations.insert(0, own(1, 1))), (0, Some(0), Fault::Unwritten(1)));
        // On one of two ways.
        let reads = |p: &mut Program| {
            p.blocks[1].end = End::Goto(BlockId(2));
            p.blocks[2].operations.push(own(0, 1));
        };
        assert_eq!(fault(reads), (2, Some(0), Fault::Unwritten(1)));
        let mut program = safe();
        reads(&mut program);
        program.blocks[0].operations.push(own(1, 0));
        verify(&program).expect("written on both ways");
    }

    #[test]
    fn registers_are_those_of_the_program() {
        let add = |to, b| Operation::Binary {
            op: Binary::Add,
            to: Register(to),
            a: Operand::Register(Register(0)),
            b: Operand::Register(Register(b)),
        };
        assert_eq!(fault(|p| p.blocks[0].operations.push(add(2, 0))), (0, Some(1), Fault::NoRegister(2)));
        assert_eq!(fault(|p| p.blocks[0].operations.push(add(1, 7))), (0, Some(1), Fault::NoRegister(7)));
        assert_eq!(fault(|p| p.registers = 1), (1, Some(0), Fault::NoRegister(1)));
    }

    #[test]
    fn branches_go_forward_to_blocks() {
        assert_eq!(fault(|p| p.blocks[1].end = End::Goto(BlockId(1))), (1, None, Fault::NotForward(1)));
        assert_eq!(fault(|p| p.blocks[1].end = End::Goto(BlockId(0))), (1, None, Fault::NotForward(0)));
        assert_eq!(fault(|p| p.blocks[3].end = End::Goto(BlockId(4))), (3, None, Fault::NotForward(4)));
        let chain = crate::graph::Chain { is_ip6: true, start: 14, protocol: 6 };
        let end = End::Chain { chain, yes: BlockId(2), no: BlockId(usize::MAX) };
        assert_eq!(fault(|p| p.blocks[1].end = end), (1, None, Fault::NotForward(usize::MAX)));
        assert_eq!(fault(|p| p.blocks.clear()), (0, None, Fault::NoBlock));
    }

    #[test]
    fn loads_and_bounds_have_sizes_that_machine_code_has() {
        for size in [0, 3, 5, 8, 255] {
            let load = Operation::Load { to: Register(0), base: None, offset: 0, size };
            assert_eq!(fault(|p| p.blocks[0].operations.push(load)), (0, Some(1), Fault::Size(size)));
        }
        let bound = |end| Operation::Bound { base: None, end };
        let far = fault(|p| p.blocks[0].operations.push(bound(u64::MAX)));
        assert_eq!(far, (0, Some(1), Fault::FarBound(u64::MAX)));
    }

    #[test]
    fn tables_are_there_and_no_lookup_leaves_them() {
        assert_eq!(fault(|p| p.tables.clear()), (1, None, Fault::NoTable(0)));
        let sizes = |change: fn(&mut PerfectHash)| {
            fault(|p| match &mut p.tables[0] {
                Table::Hash(hash) => change(hash),
                Table::Bitmap { .. } | Table::Tuples(_) => unreachable!("the first table is a hash"),
            })
        };
        let expected = (1, None, Fault::TableSize(0));
        assert_eq!(sizes(|h| h.slots.push(0)), expected);
        assert_eq!(sizes(|h| h.slots.clear()), expected);
        assert_eq!(sizes(|h| h.displacements.push(0)), expected);
        assert_eq!(sizes(|h| h.displacements.clear()), expected);
        assert_eq!(fault(|p| p.tables[0] = Table::Bitmap { first: 0, words: Vec::new() }), expected);
    }

    #[test]
    fn a_plan_that_leaves_out_or_shortens_a_check_is_found() {
        let program = safe();
        let good = vec![vec![Some(15)], vec![Some(24)], vec![], vec![]];
        verify_checks(&program, &good).expect("a plan that covers all");
        let unchecked = |block, wanted| Err(Unsafe { block, operation: Some(0), fault: Fault::Unchecked(wanted) });
        for (block, wanted) in [(0usize, 15u64), (1, 24)] {
            for end in [None, Some(0), Some(wanted - 1)] {
                let mut bad = good.clone();
                bad[block][0] = end;
                assert_eq!(verify_checks(&program, &bad), unchecked(block, wanted));
            }
        }
        assert_eq!(verify_checks(&program, &Vec::new()), unchecked(0, 15));
    }

    #[test]
    fn what_is_known_of_a_base_ends_where_it_is_written_or_another_way_joins() {
        let mut program = safe();
        let bound = Operation::Bound { base: Some(Register(0)), end: 24 };
        program.blocks[0].operations.push(bound.clone());
        let plan = |b: Option<u64>, c: Option<u64>| vec![vec![Some(15), b], vec![c], vec![], vec![]];
        verify_checks(&program, &plan(Some(24), None)).expect("checked in the block before");
        // The base is written between.
        program.blocks[0].operations.push(Operation::Length { to: Register(0) });
        let mut checks = plan(Some(24), None);
        checks[0].push(None);
        let found = verify_checks(&program, &checks).expect_err("another base");
        assert_eq!((found.block, found.fault), (1, Fault::Unchecked(24)));
        // A bound of no bytes still says that the base is not behind the end.
        let mut program = safe();
        program.blocks[2].operations.push(Operation::Bound { base: Some(Register(0)), end: 0 });
        let checks = vec![vec![Some(15)], vec![Some(24)], vec![None], vec![]];
        let found = verify_checks(&program, &checks).expect_err("only checked on one way");
        assert_eq!((found.block, found.fault), (2, Fault::Unchecked(0)));
    }
}
