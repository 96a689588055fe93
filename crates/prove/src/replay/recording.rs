//! What a run of the old function did, for the run of the new one to follow.

use bpf_program::ByteOrder;
use bpf_semantics::interp::{ArgValue, Event as Call};
use rustc_hash::FxHashMap;

/// What a run did, as far as the outside can tell.
#[derive(Default)]
pub(super) struct Recording {
    /// The order of bytes of what was stored to the context.
    pub(super) byte_order: ByteOrder,
    pub(super) calls: Vec<Call>,
    /// For each call its result and what it wrote.
    pub(super) effects: Vec<(u64, Vec<(u64, u8)>)>,
    /// For each call whether it is of those that may have no effect: the contract lets the new side leave them out, or make them
    /// where they are needed.
    pub(super) without_effect: Vec<bool>,
    /// For each call of a helper that gives one number all through a run of some programs: its name, and that number.
    pub(super) constants: Vec<(String, u64)>,
    /// How often a call of the recorded run was asked that comes again later, and so might have been left out, or meant.
    pub(super) choices: u32,
    /// Calls of the recorded run that got each other's answers here: the later one, and the one whose answer it gets.
    pub(super) exchanged: FxHashMap<usize, usize>,
    /// Calls of the recorded run that may have no effect, and are missing here where a call that has one stands behind them.
    pub(super) passed_over: Vec<Call>,
    /// Others have changed memory at a call of the recorded run that is left out here.
    pub(super) others_wrote: bool,
    /// For each call the world after it.
    pub(super) worlds: Vec<u32>,
    /// For each call the frame before it.
    pub(super) frames: Vec<Vec<u8>>,
    /// For each call the memory written so far.
    pub(super) memory: Vec<FxHashMap<u64, u8>>,
    /// Stores to context fields.
    pub(super) ctx_stores: Vec<CtxStore>,
    /// Bytes of context fields that were read before anything was stored there.
    pub(super) ctx_read: FxHashMap<i64, u8>,
    /// What fields of the context were found to hold: how many calls were made before that may see them, offset, bytes.
    pub(super) fields: FxHashMap<(usize, i64, u32), u64>,
    /// Legacy loads from the packet.
    pub(super) packet_loads: Vec<PacketLoad>,
    /// The last call was one that nobody comes back from.
    pub(super) thrown: bool,
    /// Memory written in all.
    pub(super) last: FxHashMap<u64, u8>,
    /// The call at which the run left the recorded one.
    pub(super) diverged: Option<String>,
    /// Initial bytes that were read.
    pub(super) read: FxHashMap<u64, u8>,
}

/// A legacy load from the packet.
pub(super) struct PacketLoad {
    /// Calls made before that may change the packet ([`Recording::calls_that_see`]).
    pub(super) calls: usize,
    pub(super) offset: i32,
    pub(super) size: u32,
    /// What was stored to the packet before.
    pub(super) packet: FxHashMap<u64, u8>,
    pub(super) found: u64,
    /// The world after it, if it is an event.
    pub(super) world: Option<u32>,
    /// What others have written by then.
    pub(super) writes: Vec<(u64, u8)>,
}

impl Recording {
    /// Whether calls of a helper that gives one number all through a run have given two: that happens where a program does not stay
    /// on its processor, which is not known of all.
    pub(super) fn has_changing_constants(&self) -> bool {
        let differs = |(i, (name, number)): (usize, &(String, u64))| {
            self.constants[..i].iter().any(|(other, first)| other == name && first != number)
        };
        self.constants.iter().enumerate().any(differs)
    }

    /// Whether others have changed memory at calls from number `from` on that may have no effect.
    pub(super) fn is_disturbed(&self, from: usize) -> bool {
        let mut calls = self.effects.iter().zip(&self.without_effect).skip(from);
        calls.any(|((_, writes), without)| *without && !writes.is_empty())
    }

    /// How many calls were made that may see what the context holds: all but those that may have no effect, which read what they
    /// are given and nothing else.
    pub(super) fn calls_that_see(&self) -> usize {
        self.without_effect.iter().filter(|without| !**without).count()
    }

    /// The bytes that stores have left in the context's fields by so many calls that may see them.
    pub(super) fn context(&self, calls: usize) -> FxHashMap<i64, u8> {
        let mut bytes = FxHashMap::default();
        for (_, off, n, v) in self.ctx_stores.iter().filter(|(c, ..)| *c <= calls) {
            bytes.extend((*off..off + i64::from(*n)).zip(self.byte_order.bytes(*v, *n as usize)));
        }
        bytes
    }
}

/// The first call that may see it, and the byte, before which the two sides leave the context differently.
pub(super) fn context_differs(old: &Recording, new: &Recording) -> Option<(usize, i64)> {
    let mut calls: Vec<usize> = old.ctx_stores.iter().chain(&new.ctx_stores).map(|s| s.0).collect();
    calls.sort_unstable();
    calls.into_iter().find_map(|n| {
        let (a, b) = (old.context(n), new.context(n));
        // What nobody has stored to is as it was.
        let before = |k: &i64| old.ctx_read.get(k).or(new.ctx_read.get(k));
        let differs = |k: &&i64| a.get(k).or(before(k)) != b.get(k).or(before(k));
        a.keys().chain(b.keys()).filter(differs).min().map(|k| (n, *k))
    })
}

/// A store to a context field: calls made before that may see it ([`Recording::calls_that_see`]), offset, bytes, value.
pub(super) type CtxStore = (usize, i64, u32, u64);

pub(super) fn words(call: &Call) -> String {
    let args: Vec<String> = call
        .args
        .iter()
        .map(|a| match a {
            ArgValue::Plain(v) => format!("{v:#x}"),
            ArgValue::StackBuffer => "stack".into(),
            ArgValue::Uninitialised => "?".into(),
        })
        .collect();
    let mut s = format!("{}({})", call.call, args.join(", "));
    for (arg, bytes) in &call.memory {
        let hex: Vec<String> = bytes.iter().map(|b| format!("{b:02x}")).collect();
        s.push_str(&format!(" with argument {arg} → {}", hex.join(" ")));
    }
    s
}
