//! The lines of a program in the making.

use std::fmt::Write;

use super::form::{Counting, Ends};
use crate::program::BlockId;

/// Where the packet's length is while it is counted.
pub(super) const LENGTH: u8 = 6;
/// Where the verdict is meanwhile.
const VERDICT: u8 = 7;

/// Lines of assembly.
#[derive(Default)]
pub(super) struct Text {
    text: String,
    labels: usize,
    /// Every packet that comes so far in the block is rejected: what follows is not reached.
    pub(super) is_over: bool,
}

impl Text {
    pub(super) fn line(&mut self, line: impl AsRef<str>) {
        if !self.is_over {
            let _ = writeln!(self.text, "    {}", line.as_ref());
        }
    }

    /// A name for a place.
    pub(super) fn label(&mut self) -> String {
        self.labels += 1;
        format!("l{}", self.labels)
    }

    /// The place is here.
    pub(super) fn place(&mut self, label: &str) {
        let _ = writeln!(self.text, "{label}:");
    }

    pub(super) fn block(&mut self, i: usize) {
        self.is_over = false;
        self.place(&format!("b{i}"));
    }

    /// Rejects every packet that comes so far.
    pub(super) fn reject_all(&mut self) {
        self.line("goto reject");
        self.is_over = true;
    }

    /// Goes to a block; `next` is the one that follows.
    pub(super) fn goto(&mut self, to: BlockId, next: usize) {
        if to.0 != next {
            self.line(format!("goto b{}", to.0));
        }
    }

    /// Goes to one of two blocks, by a comparison with `symbol`.
    pub(super) fn branch(
        &mut self,
        (left, symbol, right): (u8, &str, &str),
        (yes, no): (BlockId, BlockId),
        next: usize,
    ) {
        let opposite = match symbol {
            "==" => Some("!="),
            ">" => Some("<="),
            ">=" => Some("<"),
            _ => None,
        };
        match opposite {
            Some(opposite) if yes.0 == next => self.line(format!("if w{left} {opposite} {right} goto b{}", no.0)),
            _ => {
                self.line(format!("if w{left} {symbol} {right} goto b{}", yes.0));
                self.goto(no, next);
            }
        }
    }

    /// Ends the program.
    pub(super) fn verdict(&mut self, accepts: bool, ends: Ends) {
        if ends.counts.is_some() {
            self.line(format!("w{VERDICT} = {}", u8::from(accepts)));
            self.line("goto count");
        } else {
            self.line(format!("w0 = {}", if accepts { ends.actions.matched } else { ends.actions.other }));
            self.line("exit");
        }
    }

    /// The whole listing. `rejects`: a block that only rejects, which serves all that are rejected on their way. `length`: how the
    /// packet's length comes to [`LENGTH`].
    pub(super) fn finish(mut self, rejects: Option<usize>, ends: Ends, length: &[String]) -> String {
        const REJECT: &str = "goto reject\n";
        self.is_over = false;
        if let Some(i) = rejects {
            self.text = self.text.replace(REJECT, &format!("goto b{i}\n"));
        } else if self.text.contains(REJECT) {
            self.place("reject");
            self.verdict(false, ends);
        }
        if let Some(counting) = ends.counts {
            self.count(counting, ends, length);
        }
        self.text
    }

    /// Adds to the counters of a verdict, and ends the program with it.
    fn count(&mut self, counting: Counting, ends: Ends, length: &[String]) {
        if let Some(rest) = self.text.strip_suffix("    goto count\n") {
            self.text.truncate(rest.len());
        }
        self.place("count");
        length.iter().for_each(|line| self.line(line));
        self.line(format!("*(u32 *)(r10 - 4) = r{VERDICT}"));
        self.line("r2 = r10");
        self.line("r2 += -4");
        self.line("r1 = counters ll");
        self.line("call bpf_map_lookup_elem");
        self.line("if r0 == 0 goto counted");
        match counting {
            Counting::Plain => {
                for (offset, n) in [(0, "1".to_owned()), (8, format!("r{LENGTH}"))] {
                    self.line(format!("r1 = *(u64 *)(r0 + {offset})"));
                    self.line(format!("r1 += {n}"));
                    self.line(format!("*(u64 *)(r0 + {offset}) = r1"));
                }
            }
            Counting::Atomic => {
                self.line("r1 = 1");
                self.line("lock *(u64 *)(r0 + 0) += r1");
                self.line(format!("lock *(u64 *)(r0 + 8) += r{LENGTH}"));
            }
        }
        self.place("counted");
        self.line(format!("if w{VERDICT} == 0 goto other"));
        self.verdict(true, Ends { counts: None, ..ends });
        self.place("other");
        self.verdict(false, Ends { counts: None, ..ends });
    }
}
