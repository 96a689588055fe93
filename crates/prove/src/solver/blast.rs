//! From terms to clauses: the bit-blaster over CaDiCaL, and models back to numbers.
//!
//! Every gate is made once (structural hashing) and simplified against constants. Initial memory
//! bytes are fresh variables; two of them whose addresses may be equal get the congruence clause
//! (equal addresses imply equal bytes), which together is Ackermann's reduction of the array theory.

use std::rc::Rc;
use std::time::Instant;

use rustc_hash::FxHashMap;
use rustsat::solvers::{
    ControlSignal, GetInternalStats, LimitConflicts, Solve, SolveIncremental, SolverResult, Terminate,
};
use rustsat::types::{Lit, TernaryVal, Var};
use rustsat_cadical::CaDiCaL;

pub use super::model::{Model, children};
use crate::options::Budget;
use crate::term::{MemId, Node, TermId, Terms, VarId, mask};

/// Answer of the solver to "can all these be true at once?".
#[derive(Debug)]
pub enum Answer {
    /// Never.
    Unsat,
    /// Yes: for these values.
    Sat(Model),
    /// The conflict limit was reached, or the deadline.
    Unknown,
}

/// A literal in DIMACS convention: ±(index + 1). [`TRUE`] is the constant.
type L = i32;
const TRUE: L = 1;
const FALSE: L = -1;

fn literal(l: L) -> Lit {
    Lit::new(l.unsigned_abs() - 1, l < 0)
}

/// How often the solver asks whether it is to go on, for each time that the clock is read.
const ASKED: u32 = 64;

/// Clauses of a query, at most: some gigabyte. Sums under masks under choices, nested, are far beyond that.
const MOST_CLAUSES: usize = 8_000_000;
/// Clauses between two looks at the clock.
const AT_A_TIME: usize = 1 << 16;
/// Work that a conflict takes ([`Budget`]).
const OF_A_CONFLICT: u64 = 100;

/// The clauses of a query. The solver gets them together, with the number of their variables: told of one variable after the other, it
/// would make room for each anew.
#[derive(Default)]
struct Clauses {
    literals: Vec<Lit>,
    /// Where each ends.
    ends: Vec<usize>,
}

impl Clauses {
    fn push(&mut self, ls: &[L]) {
        self.literals.extend(ls.iter().map(|l| literal(*l)));
        self.ends.push(self.literals.len());
    }

    fn iter(&self) -> impl Iterator<Item = &[Lit]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.literals[start..*end])
    }

    fn len(&self) -> usize {
        self.ends.len()
    }
}

/// One query being built. Terms are asserted, then solved once.
pub struct Blaster<'t> {
    terms: &'t mut Terms,
    /// The variable made last; they count from 1.
    next: L,
    bits: FxHashMap<TermId, Rc<[L]>>,
    ands: FxHashMap<(L, L), L>,
    xors: FxHashMap<(L, L), L>,
    selects: FxHashMap<MemId, Vec<(TermId, TermId)>>,
    vars: Vec<(VarId, TermId)>,
    clauses: Clauses,
    deadline: Option<Instant>,
    budget: Option<Budget>,
    /// It became too large, or the time was up: what is made from now on means nothing, and the answer is [`Answer::Unknown`].
    given_up: bool,
}

impl<'t> Blaster<'t> {
    /// An empty query over `terms`, to be made and answered until `deadline`.
    pub fn new(terms: &'t mut Terms, deadline: Option<Instant>) -> Blaster<'t> {
        let mut b = Blaster {
            terms,
            next: TRUE,
            bits: FxHashMap::default(),
            ands: FxHashMap::default(),
            xors: FxHashMap::default(),
            selects: FxHashMap::default(),
            vars: Vec::new(),
            clauses: Clauses::default(),
            deadline,
            budget: None,
            given_up: false,
        };
        b.clause(&[TRUE]);
        b
    }

    /// The same, with what may be done at all.
    #[must_use]
    pub(crate) fn within(self, budget: Option<Budget>) -> Blaster<'t> {
        Blaster { budget, ..self }
    }

    /// How many clauses it has so far.
    pub fn clauses(&self) -> usize {
        self.clauses.len()
    }

    /// Requires a truth value.
    pub fn assert(&mut self, t: TermId) {
        let l = self.blast(t)[0];
        self.clause(&[l]);
    }

    /// Solves what was asserted, within a number of conflicts.
    pub fn solve(self, conflicts: u32) -> Answer {
        let Some(mut sat) = self.solver() else { return Answer::Unknown };
        let affordable = self.budget.as_ref().map_or(u64::MAX, |b| b.left() / OF_A_CONFLICT);
        let most = u32::try_from(affordable).map_or(conflicts, |most| most.min(conflicts));
        if sat.limit_conflicts(Some(most)).is_err() {
            return Answer::Unknown;
        }
        let answer = sat.solve();
        let is_cut = most < conflicts && matches!(answer, Ok(SolverResult::Interrupted) | Err(_));
        // What is left would not do for a conflict.
        self.spend(if is_cut { u64::MAX } else { sat.conflicts() as u64 * OF_A_CONFLICT });
        match answer {
            Ok(SolverResult::Unsat) => Answer::Unsat,
            Ok(SolverResult::Sat) => Answer::Sat(self.model(&sat)),
            _ => Answer::Unknown,
        }
    }

    /// The same with wishes, the dearest first: where they contradict each other, or what was asserted, the last ones of those that do
    /// are left out.
    pub fn solve_with(mut self, wishes: &[TermId], conflicts: u32) -> Answer {
        let mut held: Vec<L> = wishes.iter().map(|t| self.blast(*t)[0]).filter(|l| *l != FALSE).collect();
        let Some(mut sat) = self.solver() else { return Answer::Unknown };
        for _ in 0..=wishes.len() {
            let assumed: Vec<Lit> = held.iter().map(|l| literal(*l)).collect();
            if sat.limit_conflicts(Some(conflicts)).is_err() {
                return Answer::Unknown;
            }
            match sat.solve_assumps(&assumed) {
                Ok(SolverResult::Sat) => return Answer::Sat(self.model(&sat)),
                Ok(SolverResult::Unsat) => {}
                _ => return Answer::Unknown,
            }
            let Ok(core) = sat.core() else { return Answer::Unknown };
            let Some(last) = assumed.iter().rposition(|l| core.contains(&!*l)) else { return Answer::Unsat };
            held.remove(last);
        }
        Answer::Unknown
    }

    /// A solver that has been told all clauses, and ends at the deadline; `None` where the query was given up, or memory is short.
    fn solver(&self) -> Option<CaDiCaL<'static, 'static>> {
        if self.given_up {
            return None;
        }
        let mut sat = CaDiCaL::default();
        // The queries are many and small: preprocessing costs more than it saves.
        sat.set_configuration(rustsat_cadical::Config::Plain).ok()?;
        sat.reserve(Var::new(self.next.unsigned_abs() - 1)).ok()?;
        self.spend((self.clauses.len() % AT_A_TIME) as u64);
        for (i, clause) in self.clauses.iter().enumerate() {
            if i.is_multiple_of(AT_A_TIME) && self.is_over() {
                return None;
            }
            sat.add_clause_ref(clause).ok()?;
        }
        if let Some(deadline) = self.deadline {
            // The solver asks more often than it is worth looking at the clock.
            let mut asked = 0u32;
            sat.attach_terminator(move || {
                asked = asked.wrapping_add(1);
                match asked.is_multiple_of(ASKED) && Instant::now() >= deadline {
                    true => ControlSignal::Terminate,
                    false => ControlSignal::Continue,
                }
            });
        }
        Some(sat)
    }

    fn model(&self, sat: &CaDiCaL<'_, '_>) -> Model {
        let holds = |l: L| matches!(sat.lit_val(literal(l)), Ok(TernaryVal::True));
        let value = |bits: &[L]| -> u64 { bits.iter().enumerate().fold(0, |v, (i, l)| v | u64::from(holds(*l)) << i) };
        let mut m = Model::default();
        for (v, t) in &self.vars {
            m.vars.insert(*v, value(&self.bits[t]));
        }
        for (mem, list) in &self.selects {
            for (addr, t) in list {
                let a = self.bits.get(addr).map(|b| value(b)).or(self.terms.as_const(*addr)).unwrap_or(0);
                m.bytes.insert((*mem, a), value(&self.bits[t]) as u8);
            }
        }
        m
    }

    fn clause(&mut self, ls: &[L]) {
        if self.given_up {
            return;
        }
        self.clauses.push(ls);
        if self.clauses.len().is_multiple_of(AT_A_TIME) {
            self.spend(AT_A_TIME as u64);
            self.given_up |= self.clauses.len() >= MOST_CLAUSES || self.is_over();
        }
    }

    fn is_over(&self) -> bool {
        self.deadline.is_some_and(|d| Instant::now() >= d) || self.budget.as_ref().is_some_and(Budget::is_spent)
    }

    fn spend(&self, units: u64) {
        if let Some(budget) = &self.budget {
            budget.spend(units);
        }
    }

    fn fresh(&mut self) -> L {
        self.next += 1;
        self.next
    }

    fn and(&mut self, a: L, b: L) -> L {
        if self.given_up || a == FALSE || b == FALSE || a == -b {
            return FALSE;
        }
        if a == TRUE || a == b {
            return b;
        }
        if b == TRUE {
            return a;
        }
        let key = (a.min(b), a.max(b));
        if let Some(&g) = self.ands.get(&key) {
            return g;
        }
        let g = self.fresh();
        self.clause(&[-g, a]);
        self.clause(&[-g, b]);
        self.clause(&[g, -a, -b]);
        self.ands.insert(key, g);
        g
    }

    fn or(&mut self, a: L, b: L) -> L {
        -self.and(-a, -b)
    }

    fn xor(&mut self, a: L, b: L) -> L {
        match (a, b) {
            _ if self.given_up => return FALSE,
            (TRUE, _) => return -b,
            (FALSE, _) => return b,
            (_, TRUE) => return -a,
            (_, FALSE) => return a,
            _ if a == b => return FALSE,
            _ if a == -b => return TRUE,
            _ => {}
        }
        let flip = (a < 0) != (b < 0);
        let (x, y) = (a.abs().min(b.abs()), a.abs().max(b.abs()));
        let g = match self.xors.get(&(x, y)) {
            Some(&g) => g,
            None => {
                let g = self.fresh();
                self.clause(&[-g, x, y]);
                self.clause(&[-g, -x, -y]);
                self.clause(&[g, -x, y]);
                self.clause(&[g, x, -y]);
                self.xors.insert((x, y), g);
                g
            }
        };
        if flip { -g } else { g }
    }

    fn mux(&mut self, c: L, a: L, b: L) -> L {
        match c {
            TRUE => return a,
            FALSE => return b,
            _ => {}
        }
        if a == b {
            return a;
        }
        if a == -b {
            return self.xor(c, b);
        }
        let x = self.and(c, a);
        let y = self.and(-c, b);
        self.or(x, y)
    }

    fn full_adder(&mut self, a: L, b: L, c: L) -> (L, L) {
        let ab = self.xor(a, b);
        let s = self.xor(ab, c);
        let x = self.and(a, b);
        let y = self.and(ab, c);
        (s, self.or(x, y))
    }

    fn add(&mut self, a: &[L], b: &[L], carry: L) -> Vec<L> {
        let mut c = carry;
        let mut out = Vec::with_capacity(a.len());
        for (x, y) in a.iter().zip(b) {
            let (s, k) = self.full_adder(*x, *y, c);
            out.push(s);
            c = k;
        }
        out
    }

    /// `a < b`, unsigned: the borrow of `a - b`.
    fn less(&mut self, a: &[L], b: &[L]) -> L {
        let mut borrow = FALSE;
        for (x, y) in a.iter().zip(b) {
            let differ = self.xor(*x, *y);
            borrow = self.mux(differ, *y, borrow);
        }
        borrow
    }

    fn equal(&mut self, a: &[L], b: &[L]) -> L {
        let mut all = TRUE;
        for (x, y) in a.iter().zip(b) {
            let d = self.xor(*x, *y);
            all = self.and(all, -d);
        }
        all
    }

    fn number(&self, w: u32, v: u64) -> Vec<L> {
        (0..w).map(|i| if v >> i & 1 == 1 { TRUE } else { FALSE }).collect()
    }

    fn times_const(&mut self, a: &[L], c: u64) -> Vec<L> {
        let w = a.len();
        let c = c & mask(w as u32);
        let neg = c.wrapping_neg() & mask(w as u32);
        let (m, subtract) = if neg.count_ones() < c.count_ones() { (neg, true) } else { (c, false) };
        let mut acc = self.number(w as u32, 0);
        for s in 0..w {
            if m >> s & 1 == 1 {
                let shifted: Vec<L> = std::iter::repeat_n(FALSE, s).chain(a.iter().copied()).take(w).collect();
                acc = self.add(&acc, &shifted, FALSE);
            }
        }
        if subtract {
            let inv: Vec<L> = acc.iter().map(|l| -l).collect();
            let zero = self.number(w as u32, 0);
            acc = self.add(&zero, &inv, TRUE);
        }
        acc
    }

    fn multiply(&mut self, a: &[L], b: &[L]) -> Vec<L> {
        let w = a.len();
        let mut acc = self.number(w as u32, 0);
        for (s, bit) in b.iter().enumerate() {
            if *bit == FALSE {
                continue;
            }
            let mut row = vec![FALSE; s];
            for x in &a[..w - s] {
                row.push(self.and(*x, *bit));
            }
            acc = self.add(&acc, &row, FALSE);
        }
        acc
    }

    /// Restoring division: quotient and remainder, all ones and the dividend for a zero divisor.
    fn divide(&mut self, a: &[L], b: &[L]) -> (Vec<L>, Vec<L>) {
        let w = a.len();
        let mut rem = vec![FALSE; w + 1];
        let mut divisor = b.to_vec();
        divisor.push(FALSE);
        let inv: Vec<L> = divisor.iter().map(|l| -l).collect();
        let mut q = vec![FALSE; w];
        for i in (0..w).rev() {
            rem.pop();
            rem.insert(0, a[i]);
            let below = self.less(&rem, &divisor);
            let diff = self.add(&rem, &inv, TRUE);
            for (r, d) in rem.iter_mut().zip(diff) {
                *r = self.mux(below, *r, d);
            }
            q[i] = -below;
        }
        rem.truncate(w);
        (q, rem)
    }

    fn shift(&mut self, a: &[L], amount: &[L], left: bool, fill: L) -> Vec<L> {
        let w = a.len();
        let mut cur = a.to_vec();
        for (i, bit) in amount.iter().enumerate() {
            let by = if i < 7 { 1usize << i } else { w };
            let mut next = Vec::with_capacity(w);
            for j in 0..w {
                let from = if left { j.checked_sub(by) } else { Some(j + by).filter(|k| *k < w) };
                let moved = from.map_or(fill, |k| cur[k]);
                next.push(self.mux(*bit, moved, cur[j]));
            }
            cur = next;
        }
        cur
    }

    /// The literals of `t`, least significant first.
    fn blast(&mut self, t: TermId) -> Rc<[L]> {
        if let Some(v) = self.bits.get(&t) {
            return v.clone();
        }
        let mut stack = vec![t];
        while let Some(&t) = stack.last() {
            if self.given_up {
                break;
            }
            if self.bits.contains_key(&t) {
                stack.pop();
                continue;
            }
            let before = stack.len();
            let node = self.terms.node(t).clone();
            children(&node, &mut |c| {
                if !self.bits.contains_key(&c) {
                    stack.push(c);
                }
            });
            if stack.len() == before {
                let v = self.blast_node(t, &node);
                debug_assert_eq!(v.len() as u32, self.terms.width(t));
                self.bits.insert(t, v.into());
                if let Node::Select(m, a) = node {
                    self.congruence(m, a, t);
                }
                stack.pop();
            }
        }
        self.bits.get(&t).cloned().unwrap_or_else(|| vec![FALSE; self.terms.width(t) as usize].into())
    }

    /// Equal addresses hold equal bytes.
    fn congruence(&mut self, m: MemId, addr: TermId, byte: TermId) {
        let others = self.selects.entry(m).or_default().clone();
        self.selects.entry(m).or_default().push((addr, byte));
        for (other, other_byte) in others {
            // Of large addresses it takes long to say whether two are the same.
            self.given_up |= self.is_over();
            if self.given_up {
                return;
            }
            let same = self.terms.same_address(addr, other);
            if self.terms.as_const(same) == Some(0) {
                continue;
            }
            let same = self.blast(same)[0];
            let (x, y) = (self.bits[&byte].clone(), self.bits[&other_byte].clone());
            let equal = self.equal(&x, &y);
            self.clause(&[-same, equal]);
        }
    }

    fn blast_node(&mut self, t: TermId, node: &Node) -> Vec<L> {
        let w = self.terms.width(t);
        let get = |s: &Self, x: &TermId| s.bits[x].clone();
        match node {
            Node::Const(k) => self.number(w, *k),
            Node::Var(v) => {
                self.vars.push((*v, t));
                (0..w).map(|_| self.fresh()).collect()
            }
            Node::Select(..) => (0..w).map(|_| self.fresh()).collect(),
            Node::Sum(ts, k) => {
                let mut acc = self.number(w, *k);
                for (x, c) in ts.iter() {
                    let a = get(self, x);
                    let p = self.times_const(&a, *c);
                    acc = self.add(&acc, &p, FALSE);
                }
                acc
            }
            Node::Mul(a, b) => {
                let (a, b) = (get(self, a), get(self, b));
                self.multiply(&a, &b)
            }
            Node::Udiv(a, b) => {
                let (a, b) = (get(self, a), get(self, b));
                self.divide(&a, &b).0
            }
            Node::Urem(a, b) => {
                let (a, b) = (get(self, a), get(self, b));
                self.divide(&a, &b).1
            }
            Node::And(a, b) => self.bitwise(a, b, Blaster::and),
            Node::Or(a, b) => self.bitwise(a, b, Blaster::or),
            Node::Xor(a, b) => self.bitwise(a, b, Blaster::xor),
            Node::Shl(a, b) => {
                let (a, b) = (get(self, a), get(self, b));
                self.shift(&a, &b, true, FALSE)
            }
            Node::Lshr(a, b) => {
                let (a, b) = (get(self, a), get(self, b));
                self.shift(&a, &b, false, FALSE)
            }
            Node::Ashr(a, b) => {
                let (a, b) = (get(self, a), get(self, b));
                let sign = a[a.len() - 1];
                self.shift(&a, &b, false, sign)
            }
            Node::Concat(ps) => ps.iter().flat_map(|p| self.bits[p].iter().copied()).collect(),
            Node::Extract(a, lo) => self.bits[a][*lo as usize..(*lo + w) as usize].to_vec(),
            Node::SExt(a) => {
                let mut v = self.bits[a].to_vec();
                let sign = v[v.len() - 1];
                v.resize(w as usize, sign);
                v
            }
            Node::Ite(c, a, b) => {
                let (c, a, b) = (get(self, c)[0], get(self, a), get(self, b));
                a.iter().zip(b.iter()).map(|(x, y)| self.mux(c, *x, *y)).collect()
            }
            Node::Eq(a, b) => {
                let (a, b) = (get(self, a), get(self, b));
                vec![self.equal(&a, &b)]
            }
            Node::Ult(a, b) => {
                let (a, b) = (get(self, a), get(self, b));
                vec![self.less(&a, &b)]
            }
            Node::Slt(a, b) => {
                let (mut a, mut b) = (self.bits[a].to_vec(), self.bits[b].to_vec());
                let top = a.len() - 1;
                a[top] = -a[top];
                b[top] = -b[top];
                vec![self.less(&a, &b)]
            }
            Node::All(ts) => {
                let mut all = TRUE;
                for x in ts.iter() {
                    let l = self.bits[x][0];
                    all = self.and(all, l);
                }
                vec![all]
            }
            Node::Not(a) => vec![-self.bits[a][0]],
        }
    }

    fn bitwise(&mut self, a: &TermId, b: &TermId, f: fn(&mut Self, L, L) -> L) -> Vec<L> {
        let (a, b) = (self.bits[a].clone(), self.bits[b].clone());
        a.iter().zip(b.iter()).map(|(x, y)| f(self, *x, *y)).collect()
    }
}
