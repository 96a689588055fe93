//! Registers of the machine for those of the program: linear scan over ranges of positions.
//!
//! Branches go forward only, so that a value is alive from the first position that writes it to the last that reads it, in the order
//! of the blocks, and nowhere else. Registers that a block reads without having written them have one such range; all others have
//! one for each write, which ends in its block. Where more are alive than the machine has registers, the one that is needed
//! longest stands in the stack frame. Where loads are calls, a value that is needed behind one is in a register that calls keep.

use rustc_hash::FxHashMap;

use crate::program::{BasicBlock, End, Operation, Program, Register};
use crate::safety::exposed;

/// Where a value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Home<R> {
    Register(R),
    /// The number of a slot in the stack frame.
    Slot(u32),
}

/// Where all values are.
#[derive(Debug)]
pub(crate) struct Allocation<R> {
    /// By block and operation, where the result goes; `None`: nothing reads it.
    pub(crate) writes: Vec<Vec<Option<Home<R>>>>,
    /// Registers that blocks read without having written them.
    pub(crate) shared: FxHashMap<Register, Home<R>>,
    /// Slots of the stack frame.
    pub(crate) slots: u32,
}

#[cfg(target_arch = "x86_64")]
impl<R: PartialEq> Allocation<R> {
    /// Whether a register of the machine holds anything.
    pub(crate) fn uses(&self, register: R) -> bool {
        let register = Home::Register(register);
        let is = |home: &Home<R>| *home == register;
        self.shared.values().any(is) || self.writes.iter().flatten().flatten().any(is)
    }
}

/// Registers for values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool<'a, R> {
    /// All of them, the cheapest first.
    pub(crate) registers: &'a [R],
    /// Those that a load leaves as they are; `None`: all.
    pub(crate) kept: Option<&'a [R]>,
    /// Where the result goes that only the branch behind it reads. It is in no pool.
    pub(crate) scratch: R,
}

impl<R: Copy + PartialEq> Pool<'_, R> {
    fn is_kept(&self, register: R) -> bool {
        self.kept.is_none_or(|kept| kept.contains(&register))
    }
}

/// What a value's range belongs to.
#[derive(Clone, Copy)]
enum Owner {
    Shared(Register),
    Write { block: usize, operation: usize },
}

/// Positions from the first write to the last read.
struct Range {
    start: usize,
    end: usize,
    owner: Owner,
}

/// Assigns registers.
pub(crate) fn allocate<R: Copy + PartialEq>(program: &Program, pool: Pool<R>) -> Allocation<R> {
    let mut allocation = Allocation {
        writes: program.blocks.iter().map(|b| vec![None; b.operations.len()]).collect(),
        shared: FxHashMap::default(),
        slots: 0,
    };
    let mut ranges = ranges(program, &mut allocation, pool.scratch);
    ranges.sort_by_key(|r| r.start);
    let homes = scan(&ranges, &loads(program), pool, &mut allocation.slots);
    for (range, home) in ranges.iter().zip(homes) {
        match range.owner {
            Owner::Shared(r) => {
                allocation.shared.insert(r, home);
            }
            Owner::Write { block, operation } => allocation.writes[block][operation] = Some(home),
        }
    }
    // All writes of a shared register go to where it is.
    for (block, homes) in program.blocks.iter().zip(&mut allocation.writes) {
        for (operation, home) in block.operations.iter().zip(homes) {
            if let Some(shared) = operation.writes().and_then(|to| allocation.shared.get(&to)) {
                *home = Some(*shared);
            }
        }
    }
    allocation
}

/// The positions of loads and of questions to maps, in order.
fn loads(program: &Program) -> Vec<usize> {
    let is_load = |o: &Operation| matches!(o, Operation::Load { .. } | Operation::HeaderLength { .. });
    let of = |b: &BasicBlock| {
        let end = matches!(b.end, End::Member { .. });
        b.operations.iter().map(is_load).chain([end]).collect::<Vec<bool>>()
    };
    let calls = program.blocks.iter().flat_map(of).enumerate();
    calls.filter(|(_, is_call)| *is_call).map(|(at, _)| at).collect()
}

fn ranges<R: Copy>(program: &Program, allocation: &mut Allocation<R>, scratch: R) -> Vec<Range> {
    let exposed = exposed(program);
    let mut shared: Vec<(Register, Option<(usize, usize)>)> = exposed.keys().map(|r| (*r, None)).collect();
    let number: FxHashMap<Register, usize> = shared.iter().enumerate().map(|(i, (r, _))| (*r, i)).collect();
    let mut ranges = Vec::new();
    let mut position = 0;
    // By register, the range of its last write in this block.
    let mut local: FxHashMap<Register, usize> = FxHashMap::default();
    for (block, BasicBlock { operations, end }) in program.blocks.iter().enumerate() {
        local.clear();
        let first_range = ranges.len();
        let mut touch = |r: Register, at: usize, ranges: &mut Vec<Range>, local: &FxHashMap<Register, usize>| {
            if let Some(i) = number.get(&r) {
                let range = shared[*i].1.get_or_insert((at, at));
                range.1 = at;
            } else if let Some(i) = local.get(&r) {
                ranges[*i].end = at;
            }
        };
        for (operation, o) in operations.iter().enumerate() {
            o.reads(&mut |r| touch(r, position, &mut ranges, &local));
            if let Some(to) = o.writes() {
                if !number.contains_key(&to) {
                    local.insert(to, ranges.len());
                    ranges.push(Range { start: position, end: position, owner: Owner::Write { block, operation } });
                }
                touch(to, position, &mut ranges, &local);
            }
            position += 1;
        }
        end.reads(&mut |r| touch(r, position, &mut ranges, &local));
        position += 1;
        keep_in_scratch(&mut ranges, first_range, (end, position - 1), allocation, scratch);
    }
    let shared = shared.into_iter().filter_map(|(r, range)| range.map(|range| (r, range)));
    ranges.extend(shared.map(|(r, (start, end))| Range { start, end, owner: Owner::Shared(r) }));
    ranges
}

/// The result of a block's last operation comes to the scratch register if only its branch reads it. What nothing reads has no
/// range.
fn keep_in_scratch<R>(
    ranges: &mut Vec<Range>,
    first: usize,
    end: (&End, usize),
    allocation: &mut Allocation<R>,
    scratch: R,
) {
    let (end, at) = end;
    if let Some(Range { start, end: last, owner: Owner::Write { block, operation } }) = ranges[first..].last()
        && (*start + 1, *last) == (at, at)
        && matches!(end, End::Branch { .. })
    {
        allocation.writes[*block][*operation] = Some(Home::Register(scratch));
        ranges.pop();
    }
    let of_block = ranges.split_off(first);
    ranges.extend(of_block.into_iter().filter(|r| r.end > r.start));
}

/// The homes of ranges, which are ordered by their starts.
fn scan<R: Copy + PartialEq>(ranges: &[Range], loads: &[usize], pool: Pool<R>, slots: &mut u32) -> Vec<Home<R>> {
    let mut homes: Vec<Home<R>> = Vec::with_capacity(ranges.len());
    // Ranges that hold registers.
    let mut active: Vec<usize> = Vec::new();
    let mut free: Vec<R> = pool.registers.iter().rev().copied().collect();
    let mut slot = || {
        *slots += 1;
        Home::Slot(*slots - 1)
    };
    for (i, range) in ranges.iter().enumerate() {
        // An operation reads its operands before it writes: its result may come to where an operand was.
        active.retain(|a| {
            let ends = ranges[*a].end <= range.start;
            if let (true, Home::Register(r)) = (ends, homes[*a]) {
                free.push(r);
            }
            !ends
        });
        // The first ones of the pool are cheaper.
        free.sort_by_key(|r| std::cmp::Reverse(pool.registers.iter().position(|p| p == r)));
        let first_behind = loads.partition_point(|at| *at <= range.start);
        let is_over_load = loads.get(first_behind).is_some_and(|at| *at < range.end);
        let fits = |r: R| !is_over_load || pool.is_kept(r);
        if let Some(at) = free.iter().rposition(|r| fits(*r)) {
            homes.push(Home::Register(free.remove(at)));
            active.push(i);
            continue;
        }
        let takeable = (0..active.len()).filter(|a| match homes[active[*a]] {
            Home::Register(r) => fits(r),
            Home::Slot(_) => false,
        });
        let furthest = takeable.max_by_key(|a| ranges[active[*a]].end);
        match furthest.filter(|a| ranges[active[*a]].end > range.end) {
            Some(a) => {
                let other = active.swap_remove(a);
                homes.push(homes[other]);
                homes[other] = slot();
                active.push(i);
            }
            None => homes.push(slot()),
        }
    }
    homes
}
