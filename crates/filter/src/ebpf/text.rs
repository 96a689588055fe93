//! The lines of a program in the making.

use std::fmt::Write;

use super::hook::Actions;
use crate::program::BlockId;

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
    pub(super) fn verdict(&mut self, accepts: bool, actions: Actions) {
        self.line(format!("w0 = {}", if accepts { actions.matched } else { actions.other }));
        self.line("exit");
    }

    /// The whole listing. `rejects`: a block that only rejects, which serves all that are rejected on their way.
    pub(super) fn finish(mut self, rejects: Option<usize>, actions: Actions) -> String {
        const REJECT: &str = "goto reject\n";
        if let Some(i) = rejects {
            return self.text.replace(REJECT, &format!("goto b{i}\n"));
        }
        if self.text.contains(REJECT) {
            self.is_over = false;
            self.place("reject");
            self.verdict(false, actions);
        }
        self.text
    }
}
