//! Whether code is the same, as it stands: nothing is proven here.

use bpf_isa::{Call, Imm64Kind, Insn};
use bpf_program::{BlockId, Function, Op, Symbol, Terminator, reverse_postorder};

/// Whether two functions are the same graph: same operations and references, jumps to the same
/// places, whatever the numbering of blocks.
pub fn same_graph(a: &Function, b: &Function) -> bool {
    let (oa, _) = reverse_postorder(a);
    let (ob, _) = reverse_postorder(b);
    if oa.len() != ob.len() || (a.kind, a.byte_order) != (b.kind, b.byte_order) {
        return false;
    }
    let number = |order: &[BlockId], n: usize| {
        let mut v = vec![usize::MAX; n];
        for (i, b) in order.iter().enumerate() {
            v[b.index()] = i;
        }
        v
    };
    let (na, nb) = (number(&oa, a.blocks.len()), number(&ob, b.blocks.len()));
    oa.iter().zip(&ob).all(|(x, y)| {
        let (p, q) = (a.block(*x), b.block(*y));
        p.ops.len() == q.ops.len()
            && p.ops.iter().zip(&q.ops).all(|(s, t)| same_op(s, t))
            && same_terminator(&p.term, &q.term)
            && p.term.successors().map(|s| na[s.index()]).eq(q.term.successors().map(|s| nb[s.index()]))
    })
}

/// Whether they stand in memory in the same order besides.
pub(crate) fn same_text(a: &Function, b: &Function) -> bool {
    let places = |f: &Function| -> Vec<Option<usize>> {
        let (order, _) = reverse_postorder(f);
        f.layout.iter().map(|b| order.iter().position(|x| x == b)).collect()
    };
    same_graph(a, b) && places(a) == places(b)
}

pub(crate) fn same_op(a: &Op, b: &Op) -> bool {
    let links = match (&a.link, &b.link) {
        (None, None) => true,
        (Some(x), Some(y)) => same_symbol(&x.symbol, &y.symbol),
        _ => false,
    };
    // The distance of a linked call follows the layout; of one without a link nobody knows where it leads.
    let insns = match (a.insn, b.insn) {
        (Insn::Call(Call::Local(_)), Insn::Call(Call::Local(_))) => a.link.is_some(),
        (Insn::LoadImm64 { kind: Imm64Kind::Func, .. }, _) if a.link.is_none() => false,
        (x, y) => x == y,
    };
    links && insns
}

fn same_symbol(a: &Symbol, b: &Symbol) -> bool {
    match (a, b) {
        (Symbol::Map { name: x, .. }, Symbol::Map { name: y, .. }) => x == y,
        _ => a == b,
    }
}

fn same_terminator(a: &Terminator, b: &Terminator) -> bool {
    match (a, b) {
        (Terminator::Goto(_), Terminator::Goto(_)) | (Terminator::Exit { .. }, Terminator::Exit { .. }) => true,
        (Terminator::MayGoto { .. }, Terminator::MayGoto { .. }) => true,
        (
            Terminator::Branch { cond: c, width: w, dst: d, src: s, .. },
            Terminator::Branch { cond: e, width: x, dst: f, src: t, .. },
        ) => c == e && w == x && d == f && s == t,
        _ => false,
    }
}
