//! Hash-consed bit-vector terms with strong normalization.
//!
//! The one idea: two expressions that compute the same value should, as often as possible, *be* the
//! same node, so that most equivalences need no solver. Three canonical shapes do the work:
//! sums (`c1*t1 + c2*t2 + k`) for arithmetic and addresses, concatenations of slices for shifts,
//! masks, byte assembly and byte order, and if-then-else with slices pushed inside. Each node also
//! carries the bits known to be zero and one, which drive the simplifications.
//!
//! A term of width 1 doubles as a truth value. Memory is part of the graph: see [`MemNode`].

mod arithmetic;
mod bits;
mod booleans;
mod comparisons;
mod memory;
mod slices;

use std::rc::Rc;

use rustc_hash::FxHashMap;

/// A term: index into its [`Terms`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TermId(u32);

impl TermId {
    /// The index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A memory: index into its [`Terms`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MemId(u32);

impl MemId {
    /// The index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A free variable: index into the variables of [`Terms`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VarId(u32);

impl VarId {
    /// The index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The shape of a term. Operands have the widths the constructor functions of [`Terms`] describe.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Node {
    /// A number.
    Const(u64),
    /// A free variable.
    Var(VarId),
    /// `Σ coefficient * term + k`; at least one term, none a constant or a sum, coefficients odd.
    Sum(Rc<[(TermId, u64)]>, u64),
    /// Product of two non-constants.
    Mul(TermId, TermId),
    /// Unsigned quotient; all ones for a zero divisor (SMT-LIB).
    Udiv(TermId, TermId),
    /// Unsigned remainder; the dividend for a zero divisor (SMT-LIB).
    Urem(TermId, TermId),
    /// Bitwise and of two terms that overlap in every bit.
    And(TermId, TermId),
    /// Bitwise or, likewise.
    Or(TermId, TermId),
    /// Bitwise exclusive or, likewise; the second may be a constant.
    Xor(TermId, TermId),
    /// Shift by a non-constant amount below the width.
    Shl(TermId, TermId),
    /// Logical right shift, likewise.
    Lshr(TermId, TermId),
    /// Arithmetic right shift, likewise.
    Ashr(TermId, TermId),
    /// Pieces, least significant first.
    Concat(Rc<[TermId]>),
    /// A slice that starts at this bit.
    Extract(TermId, u32),
    /// Sign extension.
    SExt(TermId),
    /// If-then-else.
    Ite(TermId, TermId, TermId),
    /// Equality (width 1).
    Eq(TermId, TermId),
    /// Unsigned less-than (width 1).
    Ult(TermId, TermId),
    /// Signed less-than (width 1).
    Slt(TermId, TermId),
    /// Conjunction of two or more truth values, sorted (width 1).
    All(Rc<[TermId]>),
    /// Negation (width 1).
    Not(TermId),
    /// The initial byte at an address of a base memory (width 8).
    Select(MemId, TermId),
}

/// A memory of one region, as bytes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum MemNode {
    /// Unknown contents: `region` as some moment (`version`) left it.
    Base {
        /// Which region, numbered by the client.
        region: u32,
        /// Which moment: a term that identifies it.
        version: TermId,
    },
    /// `prev` with the bytes at `base + offset` replaced; offsets ascending.
    Chunk {
        /// Memory before.
        prev: MemId,
        /// Symbolic part of the address (no constant).
        base: TermId,
        /// Constant offsets and byte values.
        bytes: Rc<[(i64, TermId)]>,
    },
    /// Joined control flow.
    Ite(TermId, MemId, MemId),
}

#[derive(Clone, Copy, Debug)]
struct Meta {
    width: u32,
    /// Bits known to be zero.
    kz: u64,
    /// Bits known to be one.
    ko: u64,
}

/// The graph. Generic over nothing: what a variable stands for is the client's business, by number.
#[derive(Default)]
pub struct Terms {
    nodes: Vec<Node>,
    meta: Vec<Meta>,
    table: FxHashMap<(Node, u32), TermId>,
    mems: Vec<MemNode>,
    mem_table: FxHashMap<MemNode, MemId>,
    var_count: u32,
    extracts: FxHashMap<(TermId, u32, u32), TermId>,
    selects: FxHashMap<(MemId, TermId, i64), TermId>,
    ites: FxHashMap<(TermId, TermId, TermId), TermId>,
    /// Results of operations that recurse into if-then-else: without these, shared subterms would be
    /// visited once per path.
    memo: FxHashMap<(Memo, TermId, TermId), Option<TermId>>,
    fuel: u64,
    /// Whether addresses are compared by the solver even where their offsets tell.
    pub solver_offsets: bool,
}

/// Operations with memoized results.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Memo {
    SExt(u32),
    Merge,
    Eq,
    Ult,
    Slt,
}

/// Constant offsets and byte values, offsets ascending.
type Bytes = Rc<[(i64, TermId)]>;

/// The low `w` bits set.
pub const fn mask(w: u32) -> u64 {
    if w >= 64 { u64::MAX } else { (1u64 << w) - 1 }
}

fn sign_extend(v: u64, w: u32) -> i64 {
    ((v << (64 - w)) as i64) >> (64 - w)
}

impl Terms {
    /// An empty graph.
    pub fn new() -> Terms {
        Terms::default()
    }

    /// Terms made so far: a measure of the work done.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The term made as number `index`, from 0.
    pub fn nth(&self, index: usize) -> Option<TermId> {
        (index < self.nodes.len()).then_some(TermId(index as u32))
    }

    /// Whether nothing has been made.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Elementary steps done, to bound runaway normalization.
    pub fn work(&self) -> u64 {
        self.fuel
    }

    /// The node of a term.
    pub fn node(&self, t: TermId) -> &Node {
        &self.nodes[t.index()]
    }

    /// The node of a memory.
    pub fn mem(&self, m: MemId) -> &MemNode {
        &self.mems[m.index()]
    }

    /// Width in bits.
    pub fn width(&self, t: TermId) -> u32 {
        self.meta[t.index()].width
    }

    /// Bits known to be zero, and bits known to be one.
    pub fn known(&self, t: TermId) -> (u64, u64) {
        let m = self.meta[t.index()];
        (m.kz, m.ko)
    }

    /// The number, if it is a constant.
    pub fn as_const(&self, t: TermId) -> Option<u64> {
        match self.node(t) {
            Node::Const(v) => Some(*v),
            _ => None,
        }
    }

    fn umax(&self, t: TermId) -> u64 {
        !self.meta[t.index()].kz & mask(self.width(t))
    }

    fn umin(&self, t: TermId) -> u64 {
        self.meta[t.index()].ko
    }

    fn intern(&mut self, node: Node, width: u32, kz: u64, ko: u64) -> TermId {
        debug_assert!((1..=64).contains(&width), "width {width}");
        self.fuel += 1;
        if let Some(&t) = self.table.get(&(node.clone(), width)) {
            return t;
        }
        let m = mask(width);
        let (kz, ko) = (kz & m, ko & m);
        if kz | ko == m && !matches!(node, Node::Const(_)) && kz & ko == 0 {
            return self.constant(width, ko);
        }
        let id = TermId(self.nodes.len() as u32);
        self.nodes.push(node.clone());
        self.meta.push(Meta { width, kz, ko });
        self.table.insert((node, width), id);
        id
    }

    /// The number `v` truncated to `width` bits.
    pub fn constant(&mut self, width: u32, v: u64) -> TermId {
        let v = v & mask(width);
        self.intern(Node::Const(v), width, !v, v)
    }

    /// True, as a term of width 1.
    pub fn tru(&mut self) -> TermId {
        self.constant(1, 1)
    }

    /// False, as a term of width 1.
    pub fn fls(&mut self) -> TermId {
        self.constant(1, 0)
    }

    /// A new free variable.
    pub fn fresh(&mut self, width: u32) -> (VarId, TermId) {
        let v = VarId(self.var_count);
        self.var_count += 1;
        (v, self.intern(Node::Var(v), width, 0, 0))
    }
}

/// A term as text, to this depth, for debugging.
pub fn show(terms: &Terms, t: TermId, depth: u32) -> String {
    let w = terms.width(t);
    if depth == 0 {
        return format!("t{}", t.index());
    }
    let s = |x: &TermId| show(terms, *x, depth - 1);
    match terms.node(t) {
        Node::Const(k) => format!("{k:#x}:{w}"),
        Node::Var(v) => format!("v{}:{w}", v.index()),
        Node::Sum(ts, k) => {
            let terms: Vec<String> = ts.iter().map(|(x, c)| format!("{c}*{}", s(x))).collect();
            format!("({} + {k:#x})", terms.join(" + "))
        }
        Node::Concat(ps) => format!("[{}]", ps.iter().rev().map(s).collect::<Vec<_>>().join(" . ")),
        Node::Extract(x, lo) => format!("{}[{lo}+{w}]", s(x)),
        Node::Ite(c, a, b) => format!("({} ? {} : {})", s(c), s(a), s(b)),
        Node::All(ts) => format!("and({})", ts.iter().map(s).collect::<Vec<_>>().join(", ")),
        Node::Not(x) => format!("!{}", s(x)),
        Node::Eq(a, b) => format!("({} == {})", s(a), s(b)),
        Node::Ult(a, b) => format!("({} < {})", s(a), s(b)),
        Node::Select(m, a) => format!("m{}[{}]", m.index(), s(a)),
        n => format!("{n:?}:{w}"),
    }
}
