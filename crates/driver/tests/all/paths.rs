//! Traps across branches: wrong rewrites of a path through several blocks that look right, and right ones beside
//! them.
//!
//! How they are written: `common/mod.rs`. Both versions of a body are built, and what turns the blocks of one into
//! those of the other is proposed as one rewrite of a path ([`bpf_prove::superblock`]). A wrong one must be refused by both
//! doors of the prover and must not pass as a change of the whole function; a right one must be proven.

use bpf_driver::{FunctionVerdict, Module};
use bpf_object::Object;
use bpf_program::{Block, BlockId, Function, Terminator};
use bpf_prove::superblock::Superblock;
use bpf_prove::{Cache, Derivation, Options, Rewrite, Session, Verdict, ask};

use crate::common::{Trap, found, judge, object, trap};

const OBJECT: &[u8] = include_bytes!("../../../../examples/hooks.o");

/// A subprogram with two 64-bit arguments and a 64-bit result.
const SUB: &str = "blend";
/// Context `xdp_md`, a result of 32 bits.
const XDP: &str = "on_xdp";
/// Context `__sk_buff`, a result of 32 bits.
const SKB: &str = "on_skb";

/// Whether two blocks do the same and end alike.
fn same(a: &Block, b: &Block) -> bool {
    let ops =
        |b: &Block| -> Vec<_> { b.ops.iter().map(|o| (o.insn, o.link.as_ref().map(|l| l.symbol.clone()))).collect() };
    ops(a) == ops(b) && condition(&a.term) == condition(&b.term)
}

fn condition(t: &Terminator) -> Option<String> {
    match t {
        Terminator::Branch { cond, width, dst, src, .. } => Some(format!("{cond:?} {width:?} {dst:?} {src:?}")),
        _ => None,
    }
}

/// The rewrite of one path that makes `g` of `f`.
fn rewrite(f: &Function, g: &Function) -> Option<Rewrite> {
    let edges = |f: &Function, b: BlockId| f.block(b).term.successors().collect::<Vec<_>>();
    if f.layout != g.layout || f.layout.iter().any(|b| edges(f, *b) != edges(g, *b)) {
        return None;
    }
    let changed: Vec<BlockId> = f.layout.iter().copied().filter(|b| !same(f.block(*b), g.block(*b))).collect();
    let mut open: Vec<(BlockId, Vec<BlockId>)> = f.layout.iter().map(|b| (*b, vec![])).collect();
    let mut found: Vec<(BlockId, Vec<BlockId>)> = vec![];
    while let Some((block, path)) = open.pop() {
        let at = path.last().copied().unwrap_or(block);
        let within = |b: &BlockId| *b == block || path.contains(b);
        for next in edges(f, at) {
            let mut longer = path.clone();
            longer.push(next);
            if Superblock::of(f, block, &longer).is_some() {
                open.push((block, longer));
            }
        }
        // A path has a jump in it.
        if !path.is_empty() && changed.iter().all(within) {
            found.push((block, path));
        }
    }
    // The longest from as early as possible: the most is known along it.
    let rank = |b: BlockId| f.layout.iter().position(|x| *x == b);
    let (block, path) = found.into_iter().min_by_key(|(b, p)| (rank(*b), std::cmp::Reverse(p.len())))?;
    let last = *path.last()?;
    let (old, with) = (Superblock::of(f, block, &path)?, Superblock::of(g, block, &path)?.into_ops());
    let (s, t) = (&f.block(last).term, &g.block(last).term);
    let term = (condition(s) != condition(t)).then(|| t.clone());
    Some(Rewrite { block, path, start: 0, end: old.ops().len(), with, term, by: "a trap" })
}

/// What the prover says of the rewrite that makes `new` of `old`, asked as a path; `Ok` if it is proven.
fn asked(host: &str, old: &str, new: &str, strict: bool) -> Result<(), String> {
    let module = |text: &str| Module::new(Object::parse(object(OBJECT, host, text)).expect("it is an object"));
    let (a, b) = (module(old), module(new));
    let graph = |u: &Module| -> Function {
        let id = u.object.function_named(host).expect("it has the function");
        u.graphs[id.0].clone().expect("it has a graph")
    };
    let (f, g) = (graph(&a), graph(&b));
    let r = rewrite(&f, &g).unwrap_or_else(|| panic!("not the rewrite of one path:\n{f}\n{g}"));
    a.with_env(|env| {
        let mut session = Session::new(Derivation::new(f.clone()), env);
        session.analyze();
        let points = session.path(r.block, &r.path).expect("it can be reached");
        let options = Options { strict_shared_memory: strict, ..Options::default() };
        let mut cache = Cache::new();
        let one = ask(&f, env, &points.known(), &r, &options);
        let other = cache.ask(&f, env, &points.known(), &r, &options);
        assert_eq!(one.is_ok(), other.is_ok(), "both doors say the same of {r:?}");
        let Err((verdict, _)) = one else {
            let (proven, _) = session.prove(&points, r.clone(), &options).expect("the third door says so, too");
            session.apply(proven, 0).expect("nothing has changed");
            let h = session.finish().into_current();
            assert!(h.layout.iter().all(|b| same(h.block(*b), g.block(*b))), "carried out:\n{h}\nnot\n{g}");
            return Ok(());
        };
        Err(match verdict {
            Verdict::Different(_) => "refuted".into(),
            Verdict::Unknown(why) => why,
            Verdict::Equal => "equal, and yet an error".into(),
        })
    })
}

/// Packet pointers, and a check for `n` bytes; the failing side returns 0.
fn checked(n: u32, body: &str) -> String {
    format!(
        "r7 = *(u32 *)(r1 + 0); r3 = *(u32 *)(r1 + 4); r2 = r7; r2 += {n}; w0 = 0; if r2 > r3 goto out; {body}; out: exit"
    )
}

/// The same with something done before the check.
fn before_check(n: u32, first: &str, body: &str) -> String {
    checked(n, body).replace("if r2 > r3", &format!("{first}; if r2 > r3"))
}

/// r8 is a number of the context, r6 an element of a map.
fn element(body: &str) -> String {
    format!("r8 = *(u32 *)(r1 + 16); {}", found("counts", body))
}

fn packets() -> Vec<Trap> {
    vec![
        trap(
            "a packet load above its bounds check",
            XDP,
            checked(1, "r4 = *(u8 *)(r7 + 0); r0 = r4"),
            before_check(1, "r4 = *(u8 *)(r7 + 0)", "r0 = r4"),
        )
        .right(before_check(1, "r4 = r7", "r0 = *(u8 *)(r4 + 0)")),
        trap(
            "a packet store above its bounds check",
            XDP,
            checked(1, "*(u8 *)(r7 + 0) = 1; w0 = 2"),
            before_check(1, "*(u8 *)(r7 + 0) = 1", "w0 = 2"),
        ),
        trap(
            "a packet load wider than its check",
            XDP,
            checked(1, "r4 = *(u8 *)(r7 + 0); r0 = r4; r0 &= 255"),
            before_check(1, "r5 = 0", "r4 = *(u16 *)(r7 + 0); r0 = r4; r0 &= 255"),
        ),
        trap(
            "a packet store below a branch that leaves after it",
            XDP,
            checked(2, "*(u8 *)(r7 + 0) = 1; r4 = *(u8 *)(r7 + 1); if r4 == 3 goto out; w0 = 2"),
            checked(2, "r4 = *(u8 *)(r7 + 1); if r4 == 3 goto out; *(u8 *)(r7 + 0) = 1; w0 = 2"),
        )
        .right(checked(2, "r4 = *(u8 *)(r7 + 1); *(u8 *)(r7 + 0) = 1; if r4 == 3 goto out; w0 = 2")),
        trap(
            "a packet store above a branch that leaves before it",
            XDP,
            checked(2, "r4 = *(u8 *)(r7 + 1); if r4 == 3 goto out; *(u8 *)(r7 + 0) = 1; w0 = 2"),
            checked(2, "*(u8 *)(r7 + 0) = 1; r4 = *(u8 *)(r7 + 1); if r4 == 3 goto out; w0 = 2"),
        ),
        trap(
            "a byte of the packet from before a store to it",
            XDP,
            checked(1, "r4 = *(u8 *)(r7 + 0); if r4 == 3 goto out; *(u8 *)(r7 + 0) = 9; r0 = *(u8 *)(r7 + 0)"),
            checked(1, "r4 = *(u8 *)(r7 + 0); if r4 == 3 goto out; *(u8 *)(r7 + 0) = 9; r0 = r4"),
        )
        .right(checked(1, "r4 = *(u8 *)(r7 + 0); if r4 == 3 goto out; *(u8 *)(r7 + 0) = 9; r0 = 9")),
        trap(
            "a byte of the packet is what it was compared with, on one side only",
            XDP,
            checked(1, "r4 = *(u8 *)(r7 + 0); if r4 == 3 goto out; w0 = 1; r0 += r4"),
            checked(1, "r4 = *(u8 *)(r7 + 0); if r4 == 3 goto out; w0 = 1; r0 += 3"),
        ),
        trap(
            "and on the other",
            XDP,
            checked(1, "r4 = *(u8 *)(r7 + 0); if r4 != 3 goto out; w0 = 1; r0 += r4"),
            checked(1, "r4 = *(u8 *)(r7 + 0); if r4 != 3 goto out; w0 = 1; r0 += 4"),
        )
        .right(checked(1, "r4 = *(u8 *)(r7 + 0); if r4 != 3 goto out; w0 = 4")),
    ]
}

fn values() -> Vec<Trap> {
    let load = "r7 = *(u64 *)(r6 + 0)";
    let add = "r1 = 1; lock *(u64 *)(r6 + 0) += r1";
    let exit = "w0 = 1; exit";
    vec![
        trap(
            "a map value read above its null check",
            XDP,
            element("r7 = *(u64 *)(r6 + 0); r0 = r7; exit"),
            element("r0 = r7; exit").replace("if r0", "r7 = *(u64 *)(r0 + 0); if r0"),
        )
        .right(element("r0 = *(u64 *)(r9 + 0); exit").replace("if r0", "r9 = r0; if r0")),
        trap(
            "a map value from before a call",
            XDP,
            element(&format!("{load}; if r7 == 3 goto out; call 5; r0 = *(u64 *)(r6 + 0); exit")),
            element(&format!("{load}; if r7 == 3 goto out; call 5; r0 = r7; exit")),
        ),
        trap(
            "a map value from before a store",
            XDP,
            element(&format!("{load}; if r7 == 3 goto out; *(u64 *)(r6 + 0) = 9; r0 = *(u64 *)(r6 + 0); exit")),
            element(&format!("{load}; if r7 == 3 goto out; *(u64 *)(r6 + 0) = 9; r0 = r7; exit")),
        )
        .right(element(&format!("{load}; if r7 == 3 goto out; *(u64 *)(r6 + 0) = 9; r0 = 9; exit"))),
        trap(
            "a map value from before an atomic",
            XDP,
            element(&format!("{load}; if r7 == 3 goto out; {add}; r0 = *(u64 *)(r6 + 0); exit")),
            element(&format!("{load}; if r7 == 3 goto out; {add}; r0 = r7; r0 += 1; exit")),
        ),
        trap(
            "a shared read a second time behind a branch",
            XDP,
            element(&format!("{load}; if r7 == 3 goto out; r0 = r7; exit")),
            element(&format!("{load}; if r7 == 3 goto out; r0 = *(u64 *)(r6 + 0); exit")),
        )
        .right(element("r0 = *(u64 *)(r6 + 0); if r0 == 3 goto out; exit")),
        trap(
            "a shared read moved behind a call",
            XDP,
            element(&format!("{load}; if r8 == 3 goto out; call 5; r0 = r7; exit")),
            element(&format!("if r8 == 3 goto out; call 5; {load}; r0 = r7; exit")),
        )
        .right(element(&format!("if r8 == 3 goto out; {load}; call 5; r0 = r7; exit"))),
        trap(
            "a shared read above a branch that leaves before it",
            XDP,
            element(&format!("if r8 == 3 goto out; {load}; r0 = r7; exit")),
            element(&format!("{load}; if r8 == 3 goto out; r0 = r7; exit")),
        ),
        trap(
            "two shared reads merged above the branch between them",
            XDP,
            element("r7 = *(u32 *)(r6 + 0); if r8 == 3 goto out; r0 = *(u32 *)(r6 + 4); r0 += r7; exit"),
            element("r7 = *(u64 *)(r6 + 0); r0 = r7; r0 >>= 32; w7 = w7; if r8 == 3 goto out; r0 += r7; exit"),
        ),
        trap(
            "a map write below a branch that leaves after it",
            XDP,
            element(&format!("*(u64 *)(r6 + 0) = 1; if r8 == 5 goto out; {exit}")),
            element(&format!("if r8 == 5 goto out; *(u64 *)(r6 + 0) = 1; {exit}")),
        )
        .right(element(&format!("r1 = 1; *(u64 *)(r6 + 0) = r1; if r8 == 5 goto out; {exit}"))),
        trap(
            "a map write above a branch that leaves before it",
            XDP,
            element(&format!("if r8 == 5 goto out; *(u64 *)(r6 + 0) = 1; {exit}")),
            element(&format!("*(u64 *)(r6 + 0) = 1; if r8 == 5 goto out; {exit}")),
        )
        .right(element(&format!("r1 = 1; if r8 == 5 goto out; *(u64 *)(r6 + 0) = r1; {exit}"))),
        trap(
            "a write of a map on one way in place of each way's own",
            XDP,
            element(&format!("*(u64 *)(r6 + 0) = 1; if r8 == 5 goto out; *(u64 *)(r6 + 0) = 2; {exit}")),
            element(&format!("*(u64 *)(r6 + 0) = 2; if r8 == 5 goto out; w1 = 2; {exit}")),
        ),
        trap(
            "an atomic below a branch that leaves after it",
            XDP,
            element(&format!("{add}; if r8 == 5 goto out; {exit}")),
            element(&format!("if r8 == 5 goto out; {add}; {exit}")),
        )
        .right(element(&format!("{}; if r8 == 5 goto out; {exit}", add.replace("r1 = 1", "r1 = 2; r1 -= 1")))),
        trap(
            "an atomic above a branch that leaves before it",
            XDP,
            element(&format!("if r8 == 5 goto out; {add}; {exit}")),
            element(&format!("{add}; if r8 == 5 goto out; {exit}")),
        )
        .right(element("r1 = 1; if r8 == 5 goto out; lock *(u64 *)(r6 + 0) += r1; w0 = 1; exit")),
        trap(
            "an atomic split into load, add and store around a branch",
            XDP,
            element(&format!("if r8 == 5 goto out; {add}; {exit}")),
            element(&format!("{load}; r7 += 1; if r8 == 5 goto out; *(u64 *)(r6 + 0) = r7; {exit}")),
        ),
        trap(
            "load and store around a branch made an atomic before it",
            XDP,
            element(&format!("{load}; r7 += 1; if r8 == 5 goto out; *(u64 *)(r6 + 0) = r7; {exit}")),
            element(&format!("{add}; if r8 == 5 goto out; w1 = 1; {exit}")),
        )
        .right(element(&format!("r7 = 1; if r8 == 5 goto out; {add}; {exit}"))),
        trap(
            "global data written below a branch that leaves after it",
            XDP,
            "r8 = *(u32 *)(r1 + 16); r1 = &seen; *(u64 *)(r1 + 0) = 1; w0 = 1; if r8 == 5 goto out; w0 = 2; out: exit",
            "r8 = *(u32 *)(r1 + 16); r1 = &seen; w0 = 1; if r8 == 5 goto out; *(u64 *)(r1 + 0) = 1; w0 = 2; out: exit",
        ),
    ]
}

fn frames() -> Vec<Trap> {
    let slot = "*(u64 *)(r10 - 8)";
    vec![
        trap(
            "a stack store below a branch to where it is read",
            SUB,
            format!("{slot} = r1; if r2 == 5 goto out; r0 = 1; exit; out: r0 = {slot}; exit"),
            format!("if r2 == 5 goto out; {slot} = r1; r0 = 1; exit; out: r0 = {slot}; exit"),
        )
        .right(format!("r3 = r1; {slot} = r3; if r2 == 5 goto out; r0 = 1; exit; out: r0 = {slot}; exit")),
        trap(
            "a stack byte that only the side exit reads",
            SUB,
            format!("{slot} = r1; *(u8 *)(r10 - 8) = r2; if r2 == 5 goto out; r0 = 1; exit; out: r0 = *(u8 *)(r10 - 8); exit"),
            format!("{slot} = r1; if r2 == 5 goto out; r0 = 1; exit; out: r0 = *(u8 *)(r10 - 8); exit"),
        )
        .right("*(u8 *)(r10 - 8) = r2; if r2 == 5 goto out; r0 = 1; exit; out: r0 = *(u8 *)(r10 - 8); exit"),
        trap(
            "two halves merged behind the branch between them",
            SUB,
            format!("*(u32 *)(r10 - 8) = r1; if r2 == 5 goto out; *(u32 *)(r10 - 4) = r2; r0 = {slot}; exit; out: r0 = *(u32 *)(r10 - 8); exit"),
            format!("w1 = w1; if r2 == 5 goto out; r2 <<= 32; r2 |= r1; {slot} = r2; r0 = r2; exit; out: r0 = *(u32 *)(r10 - 8); exit"),
        )
        .right("*(u32 *)(r10 - 8) = r1; w1 = w1; if r2 == 5 goto out; r0 = r2; r0 <<= 32; r0 |= r1; exit; out: r0 = *(u32 *)(r10 - 8); exit"),
        trap(
            "a stack store above a branch to where the old value is read",
            SUB,
            format!("{slot} = r1; if r2 == 5 goto out; {slot} = r2; r0 = {slot}; exit; out: r0 = {slot}; exit"),
            format!("{slot} = r1; {slot} = r2; if r2 == 5 goto out; r0 = {slot}; exit; out: r0 = {slot}; exit"),
        )
        .right(format!("{slot} = r1; if r2 == 5 goto out; r0 = r2; exit; out: r0 = {slot}; exit")),
        trap(
            "a spill reloaded from before the branch although it changed behind",
            SUB,
            format!("{slot} = r1; r3 = {slot}; if r3 == 5 goto out; {slot} = r2; r0 = {slot}; exit; out: r0 = 0; exit"),
            format!("{slot} = r1; r3 = {slot}; if r3 == 5 goto out; {slot} = r2; r0 = r3; exit; out: r0 = 0; exit"),
        )
        .right("*(u64 *)(r10 - 8) = 0; r3 = r1; if r1 == 5 goto out; r0 = r2; exit; out: r0 = 0; exit"),
    ]
}

fn registers() -> Vec<Trap> {
    vec![
        trap(
            "a register that the other side reads clobbered",
            SUB,
            "r3 = r1; if r2 == 5 goto out; r3 += 1; r0 = r3; exit; out: r0 = r3; exit",
            "r3 = r1; r3 += 1; if r2 == 5 goto out; r0 = r3; exit; out: r0 = r3; exit",
        )
        .right("r3 = r1; if r2 == 5 goto out; r0 = r3; r0 += 1; exit; out: r0 = r3; exit"),
        trap(
            "a result that the side exit returns",
            SUB,
            "r0 = 2; if r2 == 5 goto out; r0 = 1; out: exit",
            "w3 = 2; if r2 == 5 goto out; r0 = 1; out: exit",
        )
        .right("w0 = 2; if r2 == 5 goto out; w0 = 1; out: exit"),
        trap(
            "a division above the check of its divisor",
            SUB,
            "r3 = r1; if r2 == 0 goto out; r3 /= r2; r0 = r3; exit; out: r0 = r3; exit",
            "r3 = r1; r3 /= r2; if r2 == 0 goto out; r0 = r3; exit; out: r0 = r3; exit",
        )
        .right("r3 = r1; r4 = r1; r4 /= r2; if r2 == 0 goto out; r0 = r4; exit; out: r0 = r3; exit"),
        trap(
            "a 32-bit modulo above the check of its divisor",
            SUB,
            "r3 = r1; if w2 == 0 goto out; w3 %= w2; r0 = r3; exit; out: r0 = r3; exit",
            "r3 = r1; w3 %= w2; if w2 == 0 goto out; r0 = r3; exit; out: r0 = r3; exit",
        )
        .right("r3 = r1; r4 = r1; w4 %= w2; if w2 == 0 goto out; r0 = r4; exit; out: r0 = r3; exit"),
        trap(
            "a call below a branch that leaves after it",
            SUB,
            "r6 = r2; w1 = 1; w2 = 0; call 23; if r6 == 5 goto out; exit; out: r0 = 0; exit",
            "r6 = r2; if r6 == 5 goto out; w1 = 1; w2 = 0; call 23; exit; out: r0 = 0; exit",
        ),
        trap(
            "a call above a branch that leaves before it",
            SUB,
            "r6 = r2; if r6 == 5 goto out; call 5; exit; out: r0 = 0; exit",
            "r6 = r2; call 5; if r6 == 5 goto out; w1 = 0; exit; out: r0 = 0; exit",
        ),
        trap(
            "a value that is known on one side used on the other",
            SUB,
            "r0 = r1; if r2 == 7 goto out; r0 += r2; exit; out: exit",
            "r0 = r1; if r2 == 7 goto out; r0 += 7; exit; out: exit",
        ),
        trap(
            "a value used before the branch that makes it known",
            SUB,
            "r0 = r1; r0 += r2; if r2 != 7 goto out; r0 ^= r2; exit; out: exit",
            "r0 = r1; r0 += 7; if r2 != 7 goto out; r0 ^= r2; exit; out: exit",
        )
        .right("r0 = r1; r0 += r2; if r2 != 7 goto out; r0 ^= 7; exit; out: exit"),
        trap(
            "32 bits compared are not 64 known",
            SUB,
            "r0 = 0; if w1 != 7 goto out; r0 = r1; exit; out: exit",
            "r0 = 0; if w1 != 7 goto out; r0 = 7; exit; out: exit",
        )
        .right("r0 = 0; if w1 != 7 goto out; r0 = r1; r0 >>= 32; r0 <<= 32; r0 |= 7; exit; out: exit"),
        trap(
            "a signed bound is no unsigned one",
            SUB,
            "r0 = 0; if r1 s> 7 goto out; r0 = r1; r0 &= 7; exit; out: exit",
            "r0 = 0; if r1 s> 7 goto out; r0 = r1; exit; out: exit",
        ),
        trap(
            "an unsigned bound does know bits",
            SUB,
            "r0 = 0; if r1 > 8 goto out; r0 = r1; r0 &= 7; exit; out: exit",
            "r0 = 0; if r1 > 8 goto out; r0 = r1; exit; out: exit",
        )
        .right("r0 = 0; if r1 > 8 goto out; r0 = r1; w0 &= 7; exit; out: exit"),
    ]
}

fn conditions() -> Vec<Trap> {
    let jump = |first: &str, cond: &str| format!("{first}; r0 = 0; if {cond} goto out; r0 = r2; out: exit");
    let two = |a: &str, b: &str| {
        format!("r0 = 0; if {a} goto one; if {b} goto two; r0 = 3; exit; one: r0 = 1; exit; two: r0 = 2; exit")
    };
    let masked = |cond: &str| jump("r1 &= 255", cond);
    let plain = |cond: &str| jump("r4 = 0", cond);
    vec![
        trap("a bound weaker by one", SUB, plain("r1 > 7"), plain("r1 >= 7")).right(plain("r1 >= 8")),
        trap("a bound stronger by one", SUB, plain("r1 s< 7"), plain("r1 s< 6")).right(plain("r1 s<= 6")),
        trap("a bound that wraps around", SUB, plain("r1 s> 2147483647"), plain("r1 s>= -2147483648")),
        trap("a signed condition", SUB, plain("r1 > 7"), plain("r1 s> 7")),
        trap("a signed condition on what has a sign", SUB, masked("r1 > 7"), masked("r1 s< 7"))
            .right(masked("r1 s> 7")),
        trap("32 bits where there are 64", SUB, plain("r1 > 7"), plain("w1 > 7")),
        trap("32 bits where the others are zero", SUB, masked("r1 > 7"), masked("w1 >= 7")).right(masked("w1 > 7")),
        trap("64 bits where there are 32", SUB, plain("w1 == 0"), plain("r1 == 0")),
        trap(
            "the immediate of a 64-bit jump has a sign",
            SUB,
            jump("w1 = w1", "w1 == -1"),
            jump("w1 = w1", "r1 == -1"),
        )
        .right(jump("w1 = w1; r4 = 0xffffffff ll", "r1 == r4")),
        trap("a bit more in a test", SUB, plain("r1 & 4"), plain("r1 & 5")).right(jump("r4 = 4", "r1 & r4")),
        trap("a test is no comparison", SUB, plain("r1 & 4"), plain("r1 == 4")),
        trap("a test of one bit is one", SUB, jump("r1 &= 6", "r1 & 4"), jump("r1 &= 6", "r1 > 4"))
            .right(jump("r1 &= 6", "r1 >= 4")),
        trap(
            "no bits known behind a test",
            SUB,
            "r0 = 0; if r1 & 8 goto out; r0 = r1; r0 &= 15; out: exit",
            "r0 = 0; if r1 & 8 goto out; r0 = r1; r0 &= 3; out: exit",
        )
        .right("r0 = 0; if r1 & 8 goto out; r0 = r1; r0 &= 7; out: exit"),
        trap("two conditions in the wrong order", SUB, two("r1 == 1", "r2 == 2"), two("r2 == 2", "r1 == 1")),
        trap("a condition that the first implies", SUB, two("r1 > 7", "r1 > 9"), two("r1 > 7", "r1 > 6"))
            .right(two("r1 > 7", "r1 > 100")),
        trap("a condition turned round", SUB, two("r1 == 1", "r2 == 2"), two("r1 != 1", "r2 == 2")),
        trap(
            "the last condition of a path",
            SUB,
            "r3 = r1; if r1 == 1 goto one; r3 += 1; if r3 == 9 goto one; r0 = 3; exit; one: r0 = r3; exit",
            "r3 = r1; if r1 == 1 goto one; r3 += 1; if r1 == 9 goto one; r0 = 3; exit; one: r0 = r3; exit",
        )
        .right("r3 = r1; if r1 == 1 goto one; r3 += 1; if r1 == 8 goto one; r0 = 3; exit; one: r0 = r3; exit"),
    ]
}

fn contexts() -> Vec<Trap> {
    let mark = "*(u32 *)(r1 + 8)";
    vec![
        trap(
            "a context store below a branch that leaves after it",
            SKB,
            format!("r2 = *(u32 *)(r1 + 0); {mark} = r2; w0 = 1; if r2 == 5 goto out; w0 = 0; out: exit"),
            format!("r2 = *(u32 *)(r1 + 0); w0 = 1; if r2 == 5 goto out; {mark} = r2; w0 = 0; out: exit"),
        )
        .right(format!("r2 = *(u32 *)(r1 + 0); r3 = r2; {mark} = r3; w0 = 1; if r2 == 5 goto out; w0 = 0; out: exit")),
        trap(
            "a context store above a branch that leaves before it",
            SKB,
            format!("r2 = *(u32 *)(r1 + 0); w0 = 1; if r2 == 5 goto out; {mark} = r2; w0 = 0; out: exit"),
            format!("r2 = *(u32 *)(r1 + 0); {mark} = r2; w0 = 1; if r2 == 5 goto out; w0 = 0; out: exit"),
        ),
        trap(
            "a context field from before a store to it",
            SKB,
            format!("r3 = {mark}; w0 = 1; if r3 == 5 goto out; r2 = 1; {mark} = r2; r0 = {mark}; out: exit"),
            format!("r3 = {mark}; w0 = 1; if r3 == 5 goto out; r2 = 1; {mark} = r2; r0 = r3; out: exit"),
        ),
        trap(
            "a context field is what it was compared with",
            SKB,
            format!("r3 = {mark}; w0 = 1; if r3 != 5 goto out; r0 = {mark}; out: exit"),
            format!("r3 = {mark}; w0 = 1; if r3 != 5 goto out; r0 = 4; out: exit"),
        )
        .right(format!("r3 = {mark}; w0 = 1; if r3 != 5 goto out; r0 = 5; out: exit")),
    ]
}

fn all() -> Vec<Trap> {
    [packets, values, frames, registers, conditions, contexts].into_iter().flat_map(|line| line()).collect()
}

#[test]
fn wrong_rewrites_of_paths_are_not_proven() {
    let traps = all();
    assert!(traps.len() >= 50);
    let mut bad = Vec::new();
    for t in &traps {
        let asked = asked(t.host, &t.old, &t.wrong, false);
        println!("{:<70} {asked:?}", t.name);
        if asked.is_ok() {
            bad.push(format!("{} was proven", t.name));
        }
        if judge(OBJECT, t.host, &t.old, &t.wrong, false) == FunctionVerdict::Equal {
            bad.push(format!("{} was proven as a whole", t.name));
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
}

#[test]
fn right_rewrites_of_paths_are_proven() {
    let (traps, mut bad) = (all(), Vec::new());
    let rights: Vec<(&Trap, &String)> = traps.iter().filter_map(|t| Some((t, t.right.as_ref()?))).collect();
    assert!(rights.len() >= 25, "{}", rights.len());
    for (t, right) in rights {
        if let Err(why) = asked(t.host, &t.old, right, false) {
            bad.push(format!("{}: {why}", t.name));
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
}

/// What only strictness forbids: two reads become one behind the branch that stood between them, or a load and a
/// store an atomic.
#[test]
fn strictness_forbids_merging_across_a_branch() {
    let cases = [
        (
            element("r7 = *(u32 *)(r6 + 0); if r8 == 3 goto out; r0 = *(u32 *)(r6 + 4); r0 += r7; exit"),
            element("r1 = 0; if r8 == 3 goto out; r0 = *(u64 *)(r6 + 0); r7 = r0; w7 = w7; r0 >>= 32; r0 += r7; exit"),
        ),
        (
            element("r7 = *(u64 *)(r6 + 0); r7 += 1; if r8 == 5 goto out; *(u64 *)(r6 + 0) = r7; w0 = 1; exit"),
            element("r7 = 1; if r8 == 5 goto out; lock *(u64 *)(r6 + 0) += r7; w0 = 1; exit"),
        ),
    ];
    for (old, new) in cases {
        assert_eq!(asked(XDP, &old, &new, false), Ok(()), "{old}\n{new}");
        assert!(asked(XDP, &old, &new, true).is_err(), "{old}\n{new}");
    }
}
