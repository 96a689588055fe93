//! How two objects are loaded and compared, as the caller says, and the error if one of them cannot be loaded.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use bpf_kernel::{KernelError, LoadOptions, LoadedObject};

use super::inputs::Filled;

/// How two objects are to be compared.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// Load every program as this type instead of what its section name says.
    pub program_type: Option<String>,
    /// Load and run only this program.
    pub only: Option<String>,
    /// Run programs, too, that may call what is not known to be harmless in a test run.
    pub allow_effects: bool,
    /// No input is tried after this.
    pub deadline: Option<Instant>,
    /// Loading both at first is broken off then.
    pub load_until: Option<Instant>,
    /// A difference that is not known to last by then stays open ([`super::Round::open`]).
    pub patience: Option<Instant>,
    /// Inputs of the caller's, by program, which [`super::Pair::on_given`] takes.
    pub given: Arc<BTreeMap<String, Vec<Filled>>>,
    /// What every object gets after it is loaded.
    pub furnish: Furnish,
}

impl Setup {
    /// How the kernel is to load the objects.
    pub(crate) fn load_options(&self) -> LoadOptions {
        LoadOptions { program_type: self.program_type.clone(), only: self.only.clone() }
    }
}

/// What is done to a freshly loaded object before its maps are first read: elements that only their owner can make, such
/// as sockets, devices and inner maps. By default nothing.
#[derive(Clone, Default)]
pub struct Furnish(Option<Arc<Furnishing>>);

type Furnishing = dyn Fn(&LoadedObject) + Send + Sync;

impl Furnish {
    /// By this function, which must do the same for equal maps.
    pub fn with(furnish: impl Fn(&LoadedObject) + Send + Sync + 'static) -> Furnish {
        Furnish(Some(Arc::new(furnish)))
    }

    pub(super) fn apply(&self, object: &LoadedObject) {
        if let Some(furnish) = &self.0 {
            furnish(object);
        }
    }
}

impl fmt::Debug for Furnish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Furnish(..)" } else { "Furnish" })
    }
}

/// Why a pair cannot be tested.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub struct PairError {
    /// Whether it is the second object that is to blame.
    pub second: bool,
    /// What the kernel crate said.
    pub source: KernelError,
}
