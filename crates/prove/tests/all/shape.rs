//! The shape of a graph: what is the same function cut otherwise, and what only looks like it.

use std::sync::Arc;

use bpf_isa::{Call, Cond, Imm64Kind, Insn, Reg, Src, Width, parse_listing};
use bpf_program::{Block, BlockId, ByteOrder, Function, Link, Op, ProgKind, Symbol, Terminator};
use bpf_prove::shape::{ShapeDifference, same_behaviour};

/// Blocks in their order, each the text of its operations and how it ends.
fn graph(blocks: Vec<(&str, Terminator)>) -> Function {
    let blocks: Vec<Block> = blocks
        .into_iter()
        .map(|(text, term)| Block {
            ops: parse_listing(text).expect("a listing").into_iter().map(Op::new).collect(),
            term,
        })
        .collect();
    let layout = (0..blocks.len() as u32).map(BlockId).collect();
    Function { name: "f".into(), kind: ProgKind::Xdp, arguments: None, byte_order: ByteOrder::Little, blocks, layout }
}

fn goto(to: u32) -> Terminator {
    Terminator::Goto(BlockId(to))
}

/// If `r1 == k`, to `taken`.
fn branch(k: i32, taken: u32, fall: u32) -> Terminator {
    let (taken, fall) = (BlockId(taken), BlockId(fall));
    let (cond, width, dst, src) = (Cond::Eq, Width::W64, Reg::R1, Src::Imm(k));
    Terminator::Branch { cond, width, dst, src, taken, fall, origin: None }
}

fn may_goto(taken: u32, fall: u32, origin: usize) -> Terminator {
    Terminator::MayGoto { taken: BlockId(taken), fall: BlockId(fall), origin: Some(origin) }
}

fn exit() -> Terminator {
    Terminator::Exit { origin: None }
}

/// A field's offset that the loader puts in, from the record of `slot`.
fn core(slot: usize) -> Op {
    let symbol = Symbol::Core { kind: 0, type_id: 7, access: Arc::from("0:1") };
    let insn = Insn::Mov { width: Width::W64, dst: Reg::R3, src: Src::Imm(0) };
    Op { insn, origin: Some(slot), link: Some(Link { slot, symbol }) }
}

fn call_of(name: &str, distance: i32) -> Op {
    let symbol = Symbol::Func { name: Arc::from(name) };
    Op { insn: Insn::Call(Call::Local(distance)), origin: None, link: Some(Link { slot: 0, symbol }) }
}

fn map(name: &str, index: usize) -> Op {
    let symbol = Symbol::Map { name: Arc::from(name), index };
    let insn = Insn::LoadImm64 { dst: Reg::R1, kind: Imm64Kind::MapFd, imm: 0 };
    Op { insn, origin: None, link: Some(Link { slot: 0, symbol }) }
}

#[track_caller]
fn same(old: &Function, new: &Function) {
    assert_eq!(same_behaviour(old, new), Ok(()), "\n{old}---\n{new}");
}

#[track_caller]
fn differ(old: &Function, new: &Function) {
    assert_eq!(same_behaviour(old, new), Err(ShapeDifference::Behaviour), "\n{old}---\n{new}");
}

/// A question, two ways that do different things, and a common end.
fn diamond() -> Function {
    graph(vec![("r2 = 1", branch(5, 1, 2)), ("r0 = 1", goto(3)), ("r0 = 2", goto(3)), ("r0 += r2", exit())])
}

#[test]
fn edges_past_empty_blocks_are_the_same() {
    let old = graph(vec![
        ("r2 = 1", branch(5, 1, 2)),
        ("", goto(3)),
        ("", goto(4)),
        ("", goto(5)),
        ("r0 = 2", exit()),
        ("r0 = 1", exit()),
    ]);
    let new = graph(vec![("r2 = 1", branch(5, 2, 1)), ("r0 = 2", exit()), ("r0 = 1", exit())]);
    same(&old, &new);
    same(&new, &old);
}

#[test]
fn blocks_may_be_merged_cut_and_ordered_anew() {
    let one = graph(vec![("r0 = 1\nr0 += 2\nr0 += 3", exit())]);
    let three = graph(vec![("r0 = 1", goto(2)), ("r0 += 3", exit()), ("r0 += 2", goto(1))]);
    same(&one, &three);
    same(&three, &one);
    let mut turned = diamond();
    turned.layout = [0, 2, 1, 3].map(BlockId).to_vec();
    same(&diamond(), &turned);
}

#[test]
fn copies_of_an_end_may_be_shared_and_doubled() {
    let two = graph(vec![
        ("", branch(5, 1, 2)),
        ("r2 = 1", goto(3)),
        ("r2 = 2", goto(4)),
        ("r0 = 0", exit()),
        ("r0 = 0", exit()),
    ]);
    let one = graph(vec![("", branch(5, 1, 2)), ("r2 = 1", goto(3)), ("r2 = 2", goto(3)), ("r0 = 0", exit())]);
    same(&two, &one);
    same(&one, &two);
}

#[test]
fn a_question_about_nothing_may_go() {
    let old = graph(vec![("r2 = 1", branch(5, 1, 2)), ("r0 = 1", exit()), ("r0 = 1", exit())]);
    let new = graph(vec![("r2 = 1\nr0 = 1", exit())]);
    same(&old, &new);
    same(&new, &old);
    // One of its ways asks about nothing itself.
    let nested = graph(vec![("r2 = 1", branch(5, 1, 2)), ("", branch(6, 3, 2)), ("r0 = 1", exit()), ("", goto(2))]);
    same(&nested, &new);
    // In a loop.
    let old = graph(vec![("r2 = 1", goto(1)), ("r2 += 1", branch(7, 2, 3)), ("", goto(1)), ("", branch(8, 1, 1))]);
    let new = graph(vec![("r2 = 1", goto(1)), ("r2 += 1", goto(1))]);
    same(&old, &new);
}

#[test]
fn swapped_edges_are_another_function() {
    let old = diamond();
    let mut new = old.clone();
    new.blocks[0].term = branch(5, 2, 1);
    differ(&old, &new);
    let mut new = old.clone();
    new.blocks[0].term = branch(6, 1, 2);
    differ(&old, &new);
    // With the condition turned they are the same; with that alone they are not.
    let with = |cond: Cond, width: Width, taken: u32, fall: u32| {
        let (taken, fall) = (BlockId(taken), BlockId(fall));
        let (dst, src) = (Reg::R1, Src::Imm(5));
        let mut f = diamond();
        f.blocks[0].term = Terminator::Branch { cond, width, dst, src, taken, fall, origin: None };
        f
    };
    same(&old, &with(Cond::Ne, Width::W64, 2, 1));
    differ(&old, &with(Cond::Ne, Width::W64, 1, 2));
    differ(&old, &with(Cond::Ne, Width::W32, 2, 1));
    same(&with(Cond::Sgt, Width::W32, 1, 2), &with(Cond::Sle, Width::W32, 2, 1));
    differ(&with(Cond::Sgt, Width::W32, 1, 2), &with(Cond::Slt, Width::W32, 2, 1));
    differ(&with(Cond::Gt, Width::W64, 1, 2), &with(Cond::Sle, Width::W64, 2, 1));
    // `&` has no opposite.
    differ(&with(Cond::Set, Width::W64, 1, 2), &with(Cond::Set, Width::W64, 2, 1));
}

#[test]
fn a_block_with_an_effect_is_not_dropped() {
    let old = graph(vec![("r0 = 0", branch(5, 1, 2)), ("*(u64 *)(r10 - 8) = r0", goto(2)), ("r0 = 1", exit())]);
    let new = graph(vec![("r0 = 0\nr0 = 1", exit())]);
    differ(&old, &new);
    differ(&new, &old);
    let half = graph(vec![("r0 = 0", branch(5, 1, 1)), ("r0 = 1", exit())]);
    differ(&old, &half);
    same(&new, &half);
}

#[test]
fn a_question_that_matters_is_not_dropped_however_late() {
    let chain = |last: &'static str| {
        graph(vec![
            ("", branch(5, 1, 2)),
            ("r2 = 1\nr3 = 1", goto(3)),
            ("r2 = 1\nr3 = 1", goto(4)),
            ("r0 = 1", exit()),
            (last, exit()),
        ])
    };
    let new = graph(vec![("r2 = 1\nr3 = 1\nr0 = 1", exit())]);
    same(&chain("r0 = 1"), &new);
    differ(&chain("r0 = 2"), &new);
}

#[test]
fn an_empty_cycle_is_neither_removed_nor_made() {
    let stuck = graph(vec![("r0 = 1", branch(5, 1, 2)), ("", goto(1)), ("", exit())]);
    let free = graph(vec![("r0 = 1", exit())]);
    let other = graph(vec![("r0 = 1", branch(5, 1, 1)), ("", exit())]);
    differ(&stuck, &free);
    differ(&free, &stuck);
    differ(&stuck, &other);
    // A cycle of two empty blocks is one of one; so is a question about nothing that leads to itself.
    let two = graph(vec![("r0 = 1", branch(5, 1, 2)), ("", goto(3)), ("", exit()), ("", goto(1))]);
    same(&stuck, &two);
    let asking = graph(vec![("r0 = 1", branch(5, 1, 2)), ("", branch(9, 1, 1)), ("", exit())]);
    same(&stuck, &asking);
    // A cycle in which something is done is not an empty one.
    let busy = graph(vec![("r0 = 1", branch(5, 1, 2)), ("r2 += 1", goto(1)), ("", exit())]);
    differ(&stuck, &busy);
    // Nor one that asks for a way out.
    let asking = graph(vec![("r0 = 1", branch(5, 1, 2)), ("", branch(9, 1, 2)), ("", exit())]);
    differ(&stuck, &asking);
    differ(&asking, &free);
}

#[test]
fn a_loop_is_not_one_turn_shorter() {
    let old = graph(vec![("r0 = 1", goto(1)), ("r0 += 1", branch(5, 1, 2)), ("", exit())]);
    let peeled = graph(vec![("r0 = 1\nr0 += 1", branch(5, 1, 2)), ("r0 += 1", branch(5, 1, 2)), ("", exit())]);
    same(&old, &peeled);
    let shorter = graph(vec![("r0 = 1", branch(5, 1, 2)), ("r0 += 1", branch(5, 1, 2)), ("", exit())]);
    differ(&old, &shorter);
}

#[test]
fn the_entry_is_the_first_block_in_memory() {
    let old = diamond();
    let mut new = old.clone();
    new.layout = [1, 3].map(BlockId).to_vec();
    differ(&old, &new);
    let mut new = old.clone();
    new.layout = [1, 0, 2, 3].map(BlockId).to_vec();
    assert!(same_behaviour(&old, &new).is_err());
    // Block 0 need not be it.
    let mut turned = graph(vec![("r0 = 2", exit()), ("r0 = 1", goto(0))]);
    turned.layout = [1, 0].map(BlockId).to_vec();
    same(&turned, &graph(vec![("r0 = 1\nr0 = 2", exit())]));
}

#[test]
fn unreachable_code_may_go_and_may_not_come() {
    let old = graph(vec![("r0 = 1", goto(2)), ("r0 = 7", goto(2)), ("", exit())]);
    let new = graph(vec![("r0 = 1", exit())]);
    same(&old, &new);
    assert_eq!(same_behaviour(&new, &old), Err(ShapeDifference::Unreachable(BlockId(1))));
    assert_eq!(same_behaviour(&old, &old), Err(ShapeDifference::Unreachable(BlockId(1))));
    // What is reached must have a place, and one only.
    let mut lost = diamond();
    lost.layout = [0, 1, 2].map(BlockId).to_vec();
    assert_eq!(same_behaviour(&diamond(), &lost), Err(ShapeDifference::NotLaidOut(BlockId(3))));
    let mut twice = diamond();
    twice.layout.push(BlockId(1));
    assert_eq!(same_behaviour(&diamond(), &twice), Err(ShapeDifference::LaidOutTwice(BlockId(1))));
    let mut nowhere = diamond();
    nowhere.blocks[3].term = goto(9);
    assert_eq!(same_behaviour(&diamond(), &nowhere), Err(ShapeDifference::NoSuchBlock(BlockId(9))));
    let mut empty = diamond();
    empty.layout.clear();
    assert!(same_behaviour(&diamond(), &empty).is_err());
}

#[test]
fn core_records_are_neither_shared_nor_doubled_nor_swapped() {
    let with = |first: usize, second: usize| {
        let mut f = graph(vec![("", branch(5, 1, 2)), ("", goto(3)), ("", goto(3)), ("r0 = r3", exit())]);
        f.blocks[1].ops.push(core(first));
        f.blocks[2].ops.push(core(second));
        f
    };
    let old = with(11, 12);
    same(&old, &old);
    let mut shared = graph(vec![("", goto(1)), ("", goto(2)), ("r0 = r3", exit())]);
    shared.blocks[1].ops.push(core(11));
    assert_eq!(same_behaviour(&old, &shared), Err(ShapeDifference::NotOnce("CO-RE records")));
    assert_eq!(same_behaviour(&shared, &with(11, 11)), Err(ShapeDifference::NotOnce("CO-RE records")));
    differ(&old, &with(12, 11));
    // A copy without the record.
    let mut bare = old.clone();
    bare.blocks[2].ops[0].link = None;
    assert_eq!(same_behaviour(&old, &bare), Err(ShapeDifference::NotOnce("CO-RE records")));
    // What was never reached takes its record with it.
    let mut dead = graph(vec![("r0 = 1", exit()), ("", exit())]);
    dead.blocks[1].ops.push(core(11));
    same(&dead, &graph(vec![("r0 = 1", exit())]));
}

#[test]
fn may_goto_keeps_its_ways_and_its_number() {
    let old = graph(vec![("r0 = 0", goto(1)), ("r0 += 1", may_goto(2, 1, 4)), ("r0 = 7", exit())]);
    same(&old, &old);
    let mut turned = old.clone();
    turned.blocks[1].term = may_goto(1, 2, 4);
    differ(&old, &turned);
    let mut asked = old.clone();
    asked.blocks[1].term = branch(4, 2, 1);
    assert!(same_behaviour(&old, &asked).is_err());
    // Peeled: the budget would be asked for by two.
    let peeled =
        graph(vec![("r0 = 0\nr0 += 1", may_goto(2, 1, 4)), ("r0 += 1", may_goto(2, 1, 4)), ("r0 = 7", exit())]);
    assert_eq!(same_behaviour(&old, &peeled), Err(ShapeDifference::NotOnce("may_goto")));
    // It counts, so that it goes nowhere else does not make it nothing.
    let idle = graph(vec![("r0 = 0", may_goto(1, 1, 4)), ("", exit())]);
    assert!(same_behaviour(&idle, &graph(vec![("r0 = 0", exit())])).is_err());
    let mut empty_loop = graph(vec![("r0 = 0", goto(1)), ("", may_goto(2, 1, 4)), ("", exit())]);
    same(&empty_loop.clone(), &empty_loop);
    empty_loop.blocks[1].term = may_goto(1, 1, 4);
    assert!(same_behaviour(&old, &empty_loop).is_err());
}

#[test]
fn what_an_instruction_refers_to_belongs_to_it() {
    let with = |op: Op| {
        let mut f = graph(vec![("", exit())]);
        f.blocks[0].ops.push(op);
        f
    };
    // The distance of a linked call follows the layout; its callee does not.
    same(&with(call_of("a", 4)), &with(call_of("a", 9)));
    differ(&with(call_of("a", 4)), &with(call_of("b", 4)));
    same(&with(map("m", 1)), &with(map("m", 2)));
    differ(&with(map("m", 1)), &with(map("n", 1)));
    let mut unlinked = map("m", 1);
    unlinked.link = None;
    differ(&with(map("m", 1)), &with(unlinked));
    // One without a name is a distance from where it stands.
    let nameless = with(Op::new(Insn::Call(Call::Local(4))));
    assert!(matches!(same_behaviour(&nameless, &nameless), Err(ShapeDifference::Positional(_))));
    let jump = with(Op::new(Insn::Ja { off: 0, long: false }));
    assert!(matches!(same_behaviour(&jump, &jump), Err(ShapeDifference::Positional(_))));
}

#[test]
fn operations_keep_their_order_and_their_operands() {
    let one = |text| graph(vec![(text, exit())]);
    differ(&one("r0 = 1\nr2 = 2"), &one("r2 = 2\nr0 = 1"));
    differ(&one("r0 = 1"), &one("w0 = 1"));
    differ(&one("r0 = 1"), &one("r0 = 1\nr0 = 1"));
    let mut other = one("r0 = 1");
    other.kind = ProgKind::Skb;
    assert_eq!(same_behaviour(&one("r0 = 1"), &other), Err(ShapeDifference::Kind));
}

#[test]
fn a_question_about_nothing_behind_another() {
    let old = graph(vec![
        ("r2 = 1", goto(3)),
        ("", branch(1, 3, 3)),
        ("r2 = 0", branch(0, 1, 3)),
        ("r2 = 0", branch(0, 2, 3)),
    ]);
    let new = graph(vec![("r2 = 1", goto(2)), ("r2 = 0", goto(2)), ("r2 = 0", branch(0, 1, 2))]);
    same(&old, &new);
}
