//! Fields of the context between what may change them.

use bpf_platform::Effects;
use rustc_hash::FxHashMap;

use crate::symbolic::context::Context;
use crate::symbolic::history::EventKind;
use crate::symbolic::variables::{Meaning, VarKey};
use crate::term::{Node, TermId};

/// Versions of one field that are looked at.
const MAX_VERSIONS: usize = 1024;

/// A field of the context keeps its value until something may change it.
///
/// The formula names a field by the version of the whole context, and every store to a field makes one: what is coarse
/// enough for proofs. In the kernel a store changes the field it goes to, and no other one.
pub(super) fn fields_stay(cx: &mut Context) -> Vec<TermId> {
    let mut vars = cx.variables();
    vars.sort_by_key(|(_, t, _)| *t);
    let mut out = Vec::new();
    for (key, t, meaning) in vars {
        let VarKey::CtxField(offset, bytes, version) = key else { continue };
        let mut field = Field { offset, bytes, width: cx.terms.width(t), meaning, known: FxHashMap::default() };
        if let Some(kept) = field.as_of(cx, version).filter(|kept| *kept != t) {
            out.push(cx.terms.eq(t, kept));
        }
    }
    out
}

struct Field {
    offset: i64,
    bytes: u32,
    width: u32,
    meaning: Meaning,
    /// Its value as of some worlds.
    known: FxHashMap<TermId, Option<TermId>>,
}

impl Field {
    /// Its value in a world, by when it may last have been changed; `None` if that is not known.
    fn as_of(&mut self, cx: &mut Context, world: TermId) -> Option<TermId> {
        if let Some(known) = self.known.get(&world) {
            return *known;
        }
        if self.known.len() > MAX_VERSIONS {
            return None;
        }
        let value = match *cx.terms.node(world) {
            Node::Ite(c, a, b) => {
                let (a, b) = (self.as_of(cx, a), self.as_of(cx, b));
                a.zip(b).map(|(a, b)| cx.terms.ite(c, a, b))
            }
            _ => self.as_of_one(cx, world),
        };
        self.known.insert(world, value);
        value
    }

    fn as_of_one(&mut self, cx: &mut Context, world: TermId) -> Option<TermId> {
        let number = cx.terms.as_const(world)?;
        if number > 0 {
            let event = cx.events.get(usize::try_from(number).ok()? - 1)?;
            let before = event.before;
            if self.outlives(&event.what) {
                return self.as_of(cx, before);
            }
        }
        Some(cx.var(VarKey::CtxField(self.offset, self.bytes, world), self.width, self.meaning.clone()))
    }

    /// Whether an event leaves it as it is.
    fn outlives(&self, what: &EventKind) -> bool {
        match what {
            EventKind::CtxStore(at, n) => {
                at + i64::from(*n) <= self.offset || self.offset + i64::from(self.bytes) <= *at
            }
            EventKind::Call(insn, symbol) => {
                let row = Effects::of(insn, symbol.is_some());
                !row.changes_context && !row.touches_everything
            }
            EventKind::Atomic(_)
            | EventKind::CtxRead(..)
            | EventKind::LegacyLoad(_)
            | EventKind::PacketBytes
            | EventKind::PacketReach
            | EventKind::Fence(..) => true,
            EventKind::CoreStore(..) => false,
        }
    }
}
