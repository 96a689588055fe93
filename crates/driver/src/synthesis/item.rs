//! One window of the search: its place and form, the effort that it gets, and the outcome. The parts of the search pass
//! these to each other.

use std::sync::Arc;

use bpf_passes::{Settings, View};
use bpf_program::BlockId;
use bpf_search::canonical::{Renaming, WindowKey, canonical};
use bpf_search::rules::{RuleBody, key_text};
use bpf_search::{Found, Payoff, Progress};

use crate::window_selection::{Text, class, key};

/// Who found something.
pub(super) const BY_RULE: &str = "rule";
/// See [`BY_RULE`].
pub(super) const BY_ENUMERATOR: &str = "enumerator";

/// A stretch of code to look at.
pub(super) struct Window {
    pub(super) block: BlockId,
    /// The blocks after it, for a superblock ([`bpf_prove::superblock`]).
    pub(super) path: Vec<BlockId>,
    pub(super) start: usize,
    pub(super) end: usize,
    /// What the window is, apart from accidents, with the text of that; `None`: it cannot be remembered.
    pub(super) form: Option<(WindowKey, Renaming, Arc<str>)>,
    pub(super) key: u64,
    pub(super) class: u64,
    /// How much it counts what its block takes.
    pub(super) weight: f64,
}

impl Window {
    pub(super) fn new(
        view: &View,
        (start, end): (usize, usize),
        candidate: usize,
        weight: f64,
        settings: &Settings,
    ) -> Window {
        let text = Text::new(view, start, end);
        let window = text.window(view, start, settings);
        let form = canonical(&window).map(|(window_key, renaming)| {
            let text = Arc::from(key_text(&window_key));
            (window_key, renaming, text)
        });
        let (key, class) = (key(&window, candidate), class(window.old));
        Window { block: view.block, path: view.path.to_vec(), start, end, form, key, class, weight }
    }
}

/// How long to search a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Effort {
    /// How often it has been looked at before.
    pub(super) level: usize,
    /// Candidates to try now.
    pub(super) candidates: u64,
    /// Those and all before.
    pub(super) total: u64,
    /// Slots up to which the enumerator tries.
    pub(super) short: usize,
}

/// A window whose turn it is.
#[derive(Clone)]
pub(super) struct Item<'a> {
    pub(super) candidate: usize,
    pub(super) window: &'a Window,
    pub(super) effort: Effort,
    /// What is remembered of it.
    pub(super) rule: Option<RuleBody>,
}

impl Item<'_> {
    /// Whether a replacement is remembered that a search with this effort would find.
    pub(super) fn is_known(&self) -> bool {
        self.rule.as_ref().is_some_and(|rule| rule.with.is_some() && rule.effort <= self.effort.total)
    }
}

/// What came of a window.
pub(super) struct Outcome {
    pub(super) found: Option<Found>,
    /// Other replacements that are proven, the cheapest first, if several forms are wanted.
    pub(super) others: Vec<Found>,
    /// Slots that it saves, and a little for what saves none.
    pub(super) saved: f64,
    /// The answer was remembered.
    pub(super) remembered: bool,
    /// Nothing shorter exists among the enumerator's instructions.
    pub(super) settled: bool,
    /// The effort was spent in full.
    pub(super) complete: bool,
    /// No replacement of so many slots exists among the enumerator's instructions.
    pub(super) exhausted: Option<usize>,
    pub(super) steps: u64,
    /// Candidates that would have taken as long as the questions to the prover.
    pub(super) questions: u64,
    pub(super) progress: Progress,
    pub(super) payoff: Payoff,
}
