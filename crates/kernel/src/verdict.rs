//! What the kernel said about an object, program by program.
//!
//! The distinction that matters to an optimizer: [`LoadVerdict::Rejected`] blames the program, and a changed program that
//! gets it while the original was accepted is a bug of the change. [`LoadVerdict::Unsupported`] and
//! [`LoadVerdict::NotLoadable`] blame the place: nothing was verified, so nothing is known.

use crate::{Decided, Marks, ProgramInfo, ProgramType, VerifierStats, stats};

/// The kernel's ENOTSUPP.
const ENOTSUPP: i32 = 524;

/// The kernel's answer to one program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoadVerdict {
    /// Loaded.
    Accepted,
    /// The verifier looked at the program and refused it.
    Rejected {
        /// The error number of bpf(BPF_PROG_LOAD).
        errno: i32,
        /// The end of the verifier's log.
        log: String,
    },
    /// This kernel cannot take such a program: no such program type, no such attach target, no BTF.
    Unsupported {
        /// libbpf's or the kernel's words.
        reason: String,
    },
    /// The object as it stands cannot be loaded: a section name without a type, a map that cannot be created. For
    /// [`load_object`](crate::load_object), which is libbpf's word alone, also legacy maps.
    NotLoadable {
        /// libbpf's words.
        reason: String,
    },
    /// This process or machine ran out of descriptors or memory before the kernel had looked at the program: elsewhere it may
    /// load.
    OutOfMeans {
        /// libbpf's or the kernel's words.
        reason: String,
    },
    /// Time ended before the kernel was asked, or before it was done; see [`Loader`](crate::Loader).
    OutOfTime,
}

impl LoadVerdict {
    /// Whether it says nothing of the program and nothing of this kernel: time or means were lacking.
    pub fn is_open(&self) -> bool {
        matches!(self, Self::OutOfTime | Self::OutOfMeans { .. })
    }

    /// Whether it says nothing of the program, though there was time: the place is to blame.
    pub fn is_of_the_place(&self) -> bool {
        matches!(self, Self::Unsupported { .. } | Self::NotLoadable { .. })
    }

    /// Whether the program was refused because it is too much for the verifier, and for nothing else that it has seen: too many
    /// instructions to process, or too many jumps that wait (`do_check` and `push_stack` in kernel/bpf/verifier.c).
    pub fn is_for_complexity(&self) -> bool {
        let Self::Rejected { log, .. } = self else { return false };
        let why = stats::last_complaint(log);
        why.starts_with("BPF program is too large. Processed ")
            || why.starts_with("The sequence of ") && why.ends_with(" jumps is too complex.")
    }

    /// Is it [`LoadVerdict::Accepted`]?
    pub fn is_accepted(&self) -> bool {
        *self == Self::Accepted
    }

    /// One line that says why not; empty for an accepted program.
    pub fn reason(&self) -> &str {
        match self {
            Self::Accepted => "",
            Self::OutOfTime => "not judged: time",
            // `bpf_prog_select_runtime`, behind the verifier: some programs the JIT compiler cannot lay out.
            Self::Rejected { errno: ENOTSUPP, log } if !stats::complains(log) => {
                "the verifier took it, but the kernel's JIT compiler gave up (ENOTSUPP)"
            }
            Self::Rejected { log, .. } => stats::last_complaint(log),
            Self::Unsupported { reason } | Self::NotLoadable { reason } | Self::OutOfMeans { reason } => {
                reason.lines().next_back().unwrap_or("")
            }
        }
    }
}

/// One entry program of an object, and what became of it.
#[derive(Debug, Clone)]
pub struct ProgramVerdict {
    /// The function's name.
    pub name: String,
    /// The ELF section it is in.
    pub section: String,
    /// The type it was loaded as.
    pub kind: ProgramType,
    /// Its instruction slots in the object, without subprograms.
    pub slots: usize,
    /// The kernel's answer.
    pub verdict: LoadVerdict,
    /// The verifier's statistics, also of a program that it rejected.
    pub stats: Option<VerifierStats>,
    /// The kernel's description, of an accepted program only.
    pub info: Option<ProgramInfo>,
    /// What else the kernel keeps of an accepted program; `None` where that cannot be read.
    pub marks: Option<Marks>,
    /// Which conditional jumps of an accepted program the verifier has decided; `None` where libbpf loaded the program.
    pub decided: Option<Decided>,
    /// What the kernel says of the program with the shortest arrays with which the first form that was asked about loads, and
    /// with long ones: of an accepted program of which that was asked ([`Question::AtAnyLength`](crate::Question)).
    pub at_other_lengths: Option<Box<[ProgramVerdict; 2]>>,
    /// What the kernel says of the program where its loader sets other read-only data than the object holds, so that the
    /// verifier knows nothing of these but what the first form that was asked about needs: of an accepted program that reads
    /// such data.
    pub with_any_constants: Option<Box<ProgramVerdict>>,
}

impl ProgramVerdict {
    /// The answer to a program of this name, section, type and length, and nothing beside it.
    pub fn new(name: String, section: String, kind: ProgramType, slots: usize, verdict: LoadVerdict) -> ProgramVerdict {
        ProgramVerdict {
            name,
            section,
            kind,
            slots,
            verdict,
            stats: None,
            info: None,
            marks: None,
            decided: None,
            at_other_lengths: None,
            with_any_constants: None,
        }
    }

    /// Whether the kernel, which has accepted this program, accepts another one in its place, and makes the same of it,
    /// whatever the loader has set.
    pub fn replaced_by(&self, other: &ProgramVerdict) -> bool {
        other.verdict.is_accepted() && self.made_otherwise(other).is_none() && self.not_for_any_loader(other).is_none()
    }

    /// Why the kernel does not accept another program in the place of this one where the loader has set other lengths of arrays
    /// or other read-only data, if that is so.
    pub fn not_for_any_loader(&self, other: &ProgramVerdict) -> Option<String> {
        let not = |(old, new): (&Self, &Self), what: &str| {
            let why = match new.verdict {
                LoadVerdict::Accepted => old.made_otherwise(new)?,
                _ => new.verdict.reason(),
            };
            Some(format!("where the loader has set other {what}: {why}"))
        };
        let lengths =
            self.both_at_other_lengths(other).and_then(|both| both.into_iter().find_map(|p| not(p, "lengths")));
        lengths.or_else(|| {
            let both = self.both_with_any_constants(other)?;
            not(both, "read-only data").or_else(|| both.0.not_for_any_loader(both.1))
        })
    }

    /// What the kernel says of two programs with the shortest and with long arrays, if what it says of one hangs on that.
    pub fn both_at_other_lengths<'p>(&'p self, other: &'p ProgramVerdict) -> Option<[(&'p Self, &'p Self); 2]> {
        let of = |p: &'p ProgramVerdict| p.at_other_lengths.as_deref();
        let any = of(self).is_some() || of(other).is_some();
        any.then(|| [0, 1].map(|i| (of(self).map_or(self, |p| &p[i]), of(other).map_or(other, |p| &p[i]))))
    }

    /// What the kernel says of two programs where the loader has set other read-only data, if one of them reads such data.
    pub fn both_with_any_constants<'p>(&'p self, other: &'p ProgramVerdict) -> Option<(&'p Self, &'p Self)> {
        let of = |p: &'p ProgramVerdict| p.with_any_constants.as_deref();
        (of(self).is_some() || of(other).is_some()).then(|| (of(self).unwrap_or(self), of(other).unwrap_or(other)))
    }

    /// This verdict and another one, and all pairs of those with what loaders may set.
    pub fn pairs<'p>(&'p self, other: &'p ProgramVerdict) -> Vec<(&'p Self, &'p Self)> {
        let mut all = vec![(self, other)];
        all.extend(self.both_at_other_lengths(other).into_iter().flatten());
        if let Some((p, q)) = self.both_with_any_constants(other) {
            all.extend(p.pairs(q));
        }
        all
    }

    /// What the kernel, which accepts this program and another one, makes of the other otherwise: a name of its own.
    pub fn made_otherwise(&self, other: &ProgramVerdict) -> Option<&'static str> {
        let (old, new) = (self.info?, other.info?);
        if old.unshares_packet != new.unshares_packet {
            return Some("unshares the packet first");
        }
        other.marks?.differs_from(&self.marks?)
    }
}

/// What became of an object.
#[derive(Debug, Clone)]
pub struct ObjectVerdict {
    /// One verdict per entry program, in the object's order; empty when it cannot even be opened.
    pub programs: Vec<ProgramVerdict>,
    /// Why the object as a whole cannot be loaded, when that is no single program's fault.
    pub not_loadable: Option<String>,
}

impl ObjectVerdict {
    /// Does the whole object load?
    pub fn is_accepted(&self) -> bool {
        self.not_loadable.is_none() && self.programs.iter().all(|program| program.verdict.is_accepted())
    }

    /// The program of that name.
    pub fn program(&self, name: &str) -> Option<&ProgramVerdict> {
        self.programs.iter().find(|program| program.name == name)
    }

    /// The instructions processed over all programs: the verifier's cost of the object.
    pub fn processed(&self) -> u64 {
        self.programs.iter().filter_map(|program| program.stats.as_ref()).map(|stats| stats.processed).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_verifier_took_and_the_compiler_did_not_has_a_reason() {
        let refused = |errno, log: &str| LoadVerdict::Rejected { errno, log: log.to_owned() };
        let statistics = "verification time 9 usec\nprocessed 277 insns (limit 1000000) max_states_per_insn 0";
        assert!(refused(ENOTSUPP, statistics).reason().contains("JIT"));
        assert!(!refused(13, statistics).reason().contains("JIT"));
        assert_eq!(refused(ENOTSUPP, "R1 is bad\nprocessed 3 insns").reason(), "R1 is bad");
    }
}
