//! Which predicates decided, counted.

use std::fmt::Write as _;
use std::path::Path;

use bpf_filter::{Filter, Run};
use bpf_kernel::LoadedObject;

use crate::failure::Failure;

/// How many packets ended in each predicate, by verdict.
#[derive(Debug)]
pub(super) struct Report {
    predicates: Vec<String>,
    /// By predicate: packets that did not match, and packets that did; behind them those that ended before the first predicate.
    counts: Vec<[u64; 2]>,
}

impl Report {
    /// Of a filter that was compiled to report.
    pub(super) fn new(filter: &Filter) -> Report {
        let predicates = filter.predicates().to_vec();
        Report { counts: vec![[0; 2]; predicates.len() + 1], predicates }
    }

    /// Counts a packet.
    pub(super) fn add(&mut self, run: &Run) {
        self.counts[run.decided.unwrap_or(self.predicates.len())][usize::from(run.accepted)] += 1;
    }

    /// The packets of two reports of the same text.
    pub(super) fn joined(mut self, other: Report) -> Report {
        for (all, more) in self.counts.iter_mut().zip(other.counts) {
            all.iter_mut().zip(more).for_each(|(all, more)| *all += more);
        }
        self
    }

    /// Reads what a program in the kernel has counted, on all processors.
    pub(super) fn read(&mut self, object: &LoadedObject) -> Result<(), Failure> {
        // A filter without predicates has no map.
        if self.predicates.is_empty() {
            return Ok(());
        }
        let failed = |e| Failure::kernel(Path::new("the map of the report"), &e);
        let map = object.map("report").map_err(failed)?;
        for (i, counts) in self.counts.iter_mut().enumerate() {
            for (verdict, count) in counts.iter_mut().enumerate() {
                let key = (2 * i + verdict) as u32;
                let values = map.lookup(&key.to_ne_bytes()).map_err(failed)?.unwrap_or_default();
                // Each processor has packets and bytes, of eight bytes each.
                let packets = values.chunks_exact(16).filter_map(|value| value.first_chunk().copied());
                *count = packets.map(u64::from_ne_bytes).sum();
            }
        }
        Ok(())
    }

    /// A line for each predicate, in the order of the text.
    pub(super) fn table(&self) -> String {
        let mut out = format!("{:>10} {:>10}  decided by\n", "match", "do not");
        for (i, ([rejected, matched], predicate)) in self.counts.iter().zip(self.rows()).enumerate() {
            if i < self.predicates.len() || rejected + matched > 0 {
                let _ = writeln!(out, "{matched:>10} {rejected:>10}  {predicate}");
            }
        }
        out
    }

    /// What the elements of an object's map `report` are.
    pub(super) fn legend(&self) -> String {
        let mut out = "map report: packets and bytes by processor\n   match  do not  decided by\n".to_owned();
        for (i, predicate) in self.rows().enumerate() {
            let _ = writeln!(out, "{:>8} {:>7}  {predicate}", 2 * i + 1, 2 * i);
        }
        out
    }

    /// What each of the counts is of.
    fn rows(&self) -> impl Iterator<Item = &str> {
        self.predicates.iter().map(String::as_str).chain(["(ended before the first predicate)"])
    }
}
