//! Queries as SMT-LIB 2, for a solver that shares no code with ours.
//!
//! A query is a list of truth values that are to hold at once; what [`Blaster`](crate::solver::blast::Blaster)
//! decides is written down node by node, one `define-fun` each in the order of dependence, so that a
//! shared graph stays as small as it is. Truth values are bit vectors of width 1, as in the graph.
//! The initial memories are arrays from 64-bit addresses to bytes. Names count up from 0 in each query,
//! so that equal questions are equal texts, whatever proof they come from.

use std::fmt::Write;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::solver::blast::{Model, children};
use crate::symbolic::variables::VarKey;
use crate::term::{MemId, Node, TermId, Terms, VarId, mask};

/// What we say about a query.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Status {
    /// All demands can hold at once.
    Sat,
    /// They cannot.
    Unsat,
    /// Not decided within the limits.
    Unknown,
}

impl Status {
    /// As SMT-LIB has it.
    pub const fn name(self) -> &'static str {
        match self {
            Status::Sat => "sat",
            Status::Unsat => "unsat",
            Status::Unknown => "unknown",
        }
    }
}

/// A query that was decided, or given up.
pub struct Query<'a> {
    /// The graph.
    pub terms: &'a Terms,
    /// Truth values that are to hold at once.
    pub demands: &'a [TermId],
    /// Our verdict.
    pub status: Status,
    /// The assignment that is to show it, if the verdict is [`Status::Sat`].
    pub model: Option<&'a Model>,
    /// What came to the verdict: `solver` or `samples`.
    pub by: &'static str,
    /// Where the values of variables come from, if that is known.
    pub origins: Option<&'a FxHashMap<VarId, VarKey>>,
}

impl Query<'_> {
    /// Whether the model, if there is one, satisfies every demand.
    pub fn model_holds(&self) -> bool {
        let mut memo = FxHashMap::default();
        self.model.is_none_or(|m| self.demands.iter().all(|t| m.eval_memo(self.terms, *t, &mut memo) == 1))
    }

    /// The whole file: where it comes from, and the question.
    pub fn file(&self) -> String {
        let writer = Writer::new(self.terms, self.demands);
        let mut head = format!("; bpf-opt: a query of the prover, {} by its {}\n", self.status.name(), self.by);
        for (i, v) in writer.vars.iter().enumerate() {
            if let Some(key) = self.origins.and_then(|keys| keys.get(v)) {
                let what: String = format!("{key:?}").chars().take(100).collect();
                let _ = writeln!(head, "; v{i}: {what}");
            }
        }
        let _ = writeln!(head, "(set-info :status {})", self.status.name());
        format!("{head}{}(check-sat)\n", writer.text())
    }

    /// Declarations, definitions and assertions only: the same text for the same question.
    pub fn formula(&self) -> String {
        Writer::new(self.terms, self.demands).text()
    }

    /// Nodes of the graph that the demands depend on.
    pub fn size(&self) -> usize {
        Writer::new(self.terms, self.demands).order.len()
    }
}

/// Calls a function with every query that gets an answer.
#[derive(Clone)]
pub struct Recorder(Arc<dyn Fn(&Query) + Send + Sync>);

impl Recorder {
    /// A recorder that calls `see`.
    pub fn new(see: impl Fn(&Query) + Send + Sync + 'static) -> Recorder {
        Recorder(Arc::new(see))
    }

    /// Hands over a query.
    pub fn see(&self, query: &Query) {
        (self.0)(query);
    }
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Recorder")
    }
}

/// The names within one query.
struct Writer<'a> {
    terms: &'a Terms,
    demands: &'a [TermId],
    /// Every node but constants, operands first.
    order: Vec<TermId>,
    names: FxHashMap<TermId, usize>,
    vars: Vec<VarId>,
    mems: Vec<MemId>,
}

impl<'a> Writer<'a> {
    fn new(terms: &'a Terms, demands: &'a [TermId]) -> Writer<'a> {
        let mut w = Writer { terms, demands, order: vec![], names: FxHashMap::default(), vars: vec![], mems: vec![] };
        for t in demands {
            w.visit(*t);
        }
        w
    }

    fn visit(&mut self, root: TermId) {
        let mut stack = vec![root];
        while let Some(&t) = stack.last() {
            let known = |s: &Self, t: TermId| s.names.contains_key(&t) || s.terms.as_const(t).is_some();
            let before = stack.len();
            if !known(self, t) {
                children(self.terms.node(t), &mut |c| {
                    if !known(self, c) {
                        stack.push(c);
                    }
                });
            }
            if stack.len() > before {
                continue;
            }
            stack.pop();
            if known(self, t) {
                continue;
            }
            match self.terms.node(t) {
                Node::Var(v) => self.vars.push(*v),
                Node::Select(m, _) if !self.mems.contains(m) => self.mems.push(*m),
                _ => {}
            }
            self.names.insert(t, self.order.len());
            self.order.push(t);
        }
    }

    fn text(&self) -> String {
        let mut s = String::with_capacity(64 * self.order.len());
        let logic = if self.mems.is_empty() { "QF_BV" } else { "QF_ABV" };
        let _ = writeln!(s, "(set-logic {logic})");
        for i in 0..self.mems.len() {
            let _ = writeln!(s, "(declare-fun m{i} () (Array (_ BitVec 64) (_ BitVec 8)))");
        }
        let mut vars = 0;
        for (i, t) in self.order.iter().enumerate() {
            let w = self.terms.width(*t);
            match self.terms.node(*t) {
                Node::Var(_) => {
                    let _ = writeln!(s, "(declare-fun v{vars} () (_ BitVec {w}))");
                    let _ = writeln!(s, "(define-fun t{i} () (_ BitVec {w}) v{vars})");
                    vars += 1;
                }
                node => {
                    let _ = writeln!(s, "(define-fun t{i} () (_ BitVec {w}) {})", self.node(node, w));
                }
            }
        }
        for t in self.demands {
            let _ = writeln!(s, "(assert (= {} #b1))", self.name(t));
        }
        s
    }

    fn name(&self, t: &TermId) -> String {
        match self.terms.node(*t) {
            Node::Const(k) => number(self.terms.width(*t), *k),
            _ => format!("t{}", self.names[t]),
        }
    }

    fn node(&self, node: &Node, w: u32) -> String {
        let n = |t: &TermId| self.name(t);
        let two = |op: &str, a: &TermId, b: &TermId| format!("({op} {} {})", n(a), n(b));
        let truth = |condition: String| format!("(ite {condition} #b1 #b0)");
        match node {
            Node::Const(k) => number(w, *k),
            // Declared, not defined.
            Node::Var(_) => String::new(),
            Node::Sum(ts, k) => {
                let parts = ts.iter().map(|(t, c)| match c & mask(w) {
                    1 => n(t),
                    c if c == mask(w) => format!("(bvneg {})", n(t)),
                    c => format!("(bvmul {} {})", number(w, c), n(t)),
                });
                let k = (k & mask(w) != 0).then(|| number(w, *k));
                chain("bvadd", parts.chain(k))
            }
            Node::Mul(a, b) => two("bvmul", a, b),
            Node::Udiv(a, b) => two("bvudiv", a, b),
            Node::Urem(a, b) => two("bvurem", a, b),
            Node::And(a, b) => two("bvand", a, b),
            Node::Or(a, b) => two("bvor", a, b),
            Node::Xor(a, b) => two("bvxor", a, b),
            Node::Shl(a, b) => two("bvshl", a, b),
            Node::Lshr(a, b) => two("bvlshr", a, b),
            Node::Ashr(a, b) => two("bvashr", a, b),
            Node::Concat(ps) => chain("concat", ps.iter().rev().map(n)),
            Node::Extract(a, lo) => format!("((_ extract {} {lo}) {})", lo + w - 1, n(a)),
            Node::SExt(a) => format!("((_ sign_extend {}) {})", w - self.terms.width(*a), n(a)),
            Node::Ite(c, a, b) => format!("(ite (= {} #b1) {} {})", n(c), n(a), n(b)),
            Node::Eq(a, b) => truth(two("=", a, b)),
            Node::Ult(a, b) => truth(two("bvult", a, b)),
            Node::Slt(a, b) => truth(two("bvslt", a, b)),
            Node::All(ts) => chain("bvand", ts.iter().map(n)),
            Node::Not(a) => format!("(bvnot {})", n(a)),
            Node::Select(m, a) => {
                let i = self.mems.iter().position(|x| x == m).unwrap_or(0);
                format!("(select m{i} {})", n(a))
            }
        }
    }
}

/// The number `k` of `w` bits.
pub(crate) fn number(w: u32, k: u64) -> String {
    format!("(_ bv{} {w})", k & mask(w))
}

/// A left-associative operation over one or more operands.
fn chain(op: &str, parts: impl Iterator<Item = String>) -> String {
    parts.reduce(|a, b| format!("({op} {a} {b})")).unwrap_or_default()
}
