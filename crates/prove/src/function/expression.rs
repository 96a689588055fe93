//! Expressions: a few operations that give one register a value made from others and from memory.

use std::collections::BTreeSet;

use bpf_facts::{Env, Kind};
use bpf_isa::{AluOp, Insn, Reg, RegSet, Src, Width};
use bpf_platform::Effects;
use bpf_program::{Op, ProgKind};
use bpf_semantics::exec;
use rustc_hash::FxHashMap;

use crate::symbolic::access::Access;
use crate::symbolic::context::Context;
use crate::symbolic::state::SymbolicState;
use crate::symbolic::symex::{Side, Sym};
use crate::symbolic::variables::MemoryRegion;
use crate::term::{Node, TermId};

/// Operations that one expression consists of at most.
const LENGTH: usize = 4;

/// Expressions that are remembered of one register.
const PER_REGISTER: usize = 4;

/// Expressions that are followed through a block at a time.
const MOST: usize = 64;

/// Operations that give one register a value made from others and from memory.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Expression {
    /// The register.
    pub dst: Reg,
    ops: Vec<Op>,
}

impl Expression {
    /// The registers it starts from.
    fn inputs(&self) -> RegSet {
        let mut set = RegSet::EMPTY;
        let mut inputs = RegSet::EMPTY;
        for op in &self.ops {
            let uses = if is_constant_call(&op.insn) { RegSet::EMPTY } else { op.insn.uses() };
            inputs = inputs.union(uses.minus(set));
            set = set.union(op.insn.defs());
        }
        inputs.without(self.dst)
    }

    /// Its operations.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// What it would give in `state`; `None` where the machine cannot tell.
    pub fn value(&self, cx: &mut Context, env: &Env, kind: ProgKind, state: &SymbolicState) -> Option<TermId> {
        Some(self.carried_out(cx, env, kind, state)?.0)
    }

    /// The bytes of the packet that it reads in `state`.
    ///
    /// Where it is available ([`AvailableExpressions`](crate::function::available::AvailableExpressions)), the program has
    /// accessed these, and the packet is where it was.
    pub fn packet_bytes(&self, cx: &mut Context, env: &Env, kind: ProgKind, state: &SymbolicState) -> Vec<Access> {
        let mut log = self.carried_out(cx, env, kind, state).map_or(Vec::new(), |(_, log)| log);
        log.retain(|a| *cx.region(a.region) == MemoryRegion::Packet);
        log
    }

    /// Whether it may read the packet.
    pub fn may_read_packet(&self, cx: &mut Context, env: &Env, kind: ProgKind, state: &SymbolicState) -> bool {
        let Some((_, log)) = self.carried_out(cx, env, kind, state) else { return true };
        log.iter().any(|a| matches!(cx.region(a.region), MemoryRegion::Packet | MemoryRegion::Anything))
    }

    /// What it gives in `state`, and what it accesses besides fixed places of the frame.
    fn carried_out(
        &self,
        cx: &mut Context,
        env: &Env,
        kind: ProgKind,
        state: &SymbolicState,
    ) -> Option<(TermId, Vec<Access>)> {
        let mut sym = Sym::new(cx, env, kind, Side::Old, state.clone());
        sym.asks_only = true;
        let i = self.dst.index();
        for op in &self.ops {
            exec(&mut sym, op).ok()?;
            sym.state.regs[i] = sym.cx.better(sym.state.regs[i]);
        }
        Some((sym.state.regs[i], sym.log))
    }

    /// One that an expression may begin with: it does not read what it writes.
    fn begun_by(insn: Insn) -> Option<Expression> {
        let (dst, insn) = match insn {
            Insn::Mov { dst, src: Src::Reg(src), .. } | Insn::MovSx { dst, src, .. } if dst != src => (dst, insn),
            Insn::Load { dst, base, .. } if dst != base => (dst, insn),
            Insn::Call(_) if is_constant_call(&insn) => (Reg::R0, insn),
            // What was stored can be loaded. Where the value was wider that gives something else, which will be seen.
            Insn::Store { size, base, off, src: Src::Reg(dst) } if dst != base => {
                (dst, Insn::Load { size, sext: false, dst, base, off })
            }
            _ => return None,
        };
        (dst != Reg::R10).then(|| Expression { dst, ops: vec![Op::new(insn)] })
    }

    /// `dst = src + k`.
    pub(crate) fn offset(dst: Reg, src: Reg, k: i64) -> Option<Expression> {
        let width = Width::W64;
        let mut ops = vec![Op::new(Insn::Mov { width, dst, src: Src::Reg(src) })];
        let imm = i32::try_from(k).ok()?;
        if k != 0 {
            ops.push(Op::new(Insn::Alu { op: AluOp::Add, width, dst, src: Src::Imm(imm) }));
        }
        Some(Expression { dst, ops })
    }

    /// `dst = base + by`.
    pub(crate) fn sum(dst: Reg, base: Reg, by: Src) -> Option<Expression> {
        let width = Width::W64;
        let add = |src| Op::new(Insn::Alu { op: AluOp::Add, width, dst, src });
        let copy = |src| Op::new(Insn::Mov { width, dst, src: Src::Reg(src) });
        let ops = match by {
            Src::Reg(by) if base == by => return None,
            _ if dst == base => vec![add(by)],
            Src::Reg(by) if dst == by => vec![add(Src::Reg(base))],
            _ => vec![copy(base), add(by)],
        };
        Some(Expression { dst, ops })
    }

    /// The same with one more operation on its register.
    fn followed_by(&self, insn: Insn) -> Option<Expression> {
        let fits = match insn {
            Insn::Alu { dst, src, .. } => dst == self.dst && src.reg() != Some(dst),
            Insn::Neg { dst, .. } | Insn::Endian { dst, .. } => dst == self.dst,
            _ => false,
        };
        if !fits || self.ops.len() == LENGTH {
            return None;
        }
        let ops = self.ops.iter().cloned().chain([Op::new(insn)]).collect();
        Some(Expression { dst: self.dst, ops })
    }

    /// The same with `to` in the place of `from`, which is another register's copy.
    fn renamed(&self, from: Reg, to: Reg) -> Option<Expression> {
        let all = self.inputs().with(self.dst);
        if !all.contains(from) || all.contains(to) || to == Reg::R10 {
            return None;
        }
        // A call gives its result in r0 and nowhere else.
        if let [call, more @ ..] = &self.ops[..]
            && is_constant_call(&call.insn)
        {
            let copy = Insn::Mov { width: Width::W64, dst: to, src: Src::Reg(Reg::R0) };
            return more.is_empty().then(|| Expression { dst: to, ops: vec![call.clone(), Op::new(copy)] });
        }
        let name = |r: Reg| if r == from { to } else { r };
        let ops = self.ops.iter().map(|op| Op::new(op.insn.map_regs(name))).collect();
        Some(Expression { dst: name(self.dst), ops })
    }
}

/// Whether a call that gives the same all through a run of some program; of which, the symbolic machine knows.
fn is_constant_call(insn: &Insn) -> bool {
    Effects::of(insn, false).is_constant()
}

/// Name of an expression.
pub type ExpressionId = u32;

/// All expressions in question, of both sides.
#[derive(Default)]
pub struct Pool {
    all: Vec<Expression>,
    ids: FxHashMap<Expression, ExpressionId>,
}

impl Pool {
    /// The expression of this name.
    pub fn get(&self, id: ExpressionId) -> &Expression {
        &self.all[id as usize]
    }

    pub(crate) fn id(&mut self, c: Expression) -> ExpressionId {
        if let Some(&id) = self.ids.get(&c) {
            return id;
        }
        let id = self.all.len() as ExpressionId;
        self.all.push(c.clone());
        self.ids.insert(c, id);
        id
    }

    /// Those that may stand behind `ops`, if `before` stand in front of them. Of stores and calls in between
    /// nothing is known here. What any of them accesses, `ops` have accessed, or it was accessed in front of them, through
    /// the same addresses: [`Expression::packet_bytes`] stands on that.
    pub(crate) fn candidates(&mut self, ops: &[Op], before: &BTreeSet<ExpressionId>) -> BTreeSet<ExpressionId> {
        let mut now: Vec<Expression> = before.iter().map(|id| self.get(*id).clone()).collect();
        for op in ops {
            let defs = op.insn.defs();
            let mut more: Vec<Expression> = Vec::new();
            if op.link.is_none() {
                more.extend(now.iter().filter_map(|c| c.followed_by(op.insn)));
                if let Insn::Mov { width: Width::W64, dst, src: Src::Reg(src) } = op.insn {
                    more.extend(now.iter().filter_map(|c| c.renamed(src, dst)));
                }
                more.extend(Expression::begun_by(op.insn));
            }
            now.retain(|c| !defs.contains(c.dst) && c.inputs().iter().all(|r| !defs.contains(r)));
            for c in more {
                if now.len() < MOST && !now.contains(&c) {
                    now.push(c);
                }
            }
        }
        let mut count = [0; 11];
        // The latest first.
        now.reverse();
        now.retain(|c| {
            count[c.dst.index()] += 1;
            count[c.dst.index()] <= PER_REGISTER
        });
        now.into_iter().map(|c| self.id(c)).collect()
    }
}

/// Takes for granted that these expressions would change nothing in `state`, of which the facts are `before`.
pub fn assume(
    cx: &mut Context,
    env: &Env,
    kind: ProgKind,
    before: &bpf_facts::State,
    state: &mut SymbolicState,
    available: &[&Expression],
) {
    let mut left: Vec<&Expression> = available.to_vec();
    while !left.is_empty() {
        // What others start from comes first.
        let ready = |c: &&Expression| left.iter().all(|o| !c.inputs().contains(o.dst));
        let c = left.remove(left.iter().position(ready).unwrap_or(0));
        let Some(value) = c.value(cx, env, kind, state) else { continue };
        let held = state.regs[c.dst.index()];
        if value == held || cx.terms.width(value) != 64 {
            continue;
        }
        let fact = before.reg(c.dst);
        // Of what may be an address, a name of its own says more than the bytes it was loaded from.
        let (base, _) = cx.terms.split_address(value);
        let named = matches!(cx.terms.node(base), Node::Var(_));
        let told = match fact.kind {
            Kind::Scalar => cx.terms.as_const(held).is_none(),
            Kind::Unknown => named,
            Kind::Pointer { .. } => cx.region_of(value).is_some() && cx.region_of(value) == cx.region_of(held),
        };
        if told {
            cx.equate(held, value);
            state.regs[c.dst.index()] = cx.learn(value, &fact.bits());
        } else {
            cx.equate(value, held);
        }
    }
}
