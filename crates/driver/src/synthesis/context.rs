//! What every part of a search knows of the run that it belongs to, and when that run is over.

use std::sync::atomic::Ordering;
use std::time::Instant;

use bpf_passes::Settings;

use crate::module::Module;
use crate::options::Options;
use crate::report::Observer;

/// What a search needs to know of the run it is part of.
#[derive(Clone, Copy)]
pub(crate) struct Search<'a> {
    pub(super) module: &'a Module,
    pub(super) settings: &'a Settings,
    pub(super) options: &'a Options,
    pub(super) observer: &'a dyn Observer,
    /// When the search began.
    pub(super) started: Instant,
    /// When the work on the object began.
    pub(super) begun: Instant,
}

impl<'a> Search<'a> {
    /// A search that begins now, in work that began before.
    pub(crate) fn new(
        module: &'a Module,
        settings: &'a Settings,
        options: &'a Options,
        observer: &'a dyn Observer,
        begun: Instant,
    ) -> Search<'a> {
        Search { module, settings, options, observer, started: Instant::now(), begun }
    }
}

/// Whether the time is over, or the user wants to stop.
pub(super) fn over(settings: &Settings) -> bool {
    settings.stop.as_ref().is_some_and(|s| s.load(Ordering::Relaxed))
        || settings.deadline.is_some_and(|d| Instant::now() >= d)
}
