//! What the paper on K2 prints of a program (Table 1): how many blocks, how many on the longest way, and when it was found.

use bpf_program::{Function, reverse_postorder};
use serde::Serialize;

/// Of a program as it was compiled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Shape {
    /// Basic blocks.
    pub blocks: usize,
    /// Blocks on the longest way through them; `None` where there are loops.
    pub longest_path: Option<usize>,
}

impl Shape {
    /// That of a function.
    pub(crate) fn of(f: &Function) -> Shape {
        let (order, loops) = reverse_postorder(f);
        let mut longest = vec![0; f.blocks.len()];
        // Behind every block stand its successors, so from the end each is known before it is asked for.
        for b in order.iter().rev() {
            let behind = f.block(*b).term.successors().map(|s| longest[s.index()]).max().unwrap_or(0);
            longest[b.index()] = 1 + behind;
        }
        Shape { blocks: f.layout.len(), longest_path: (!loops).then(|| longest[f.entry().index()]) }
    }
}

/// When a function was first what it is in the end.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Reached {
    /// Seconds since the work on the object began.
    pub seconds: f64,
    /// Candidates that the chains had tried by then, over all functions.
    pub proposals: u64,
    /// Its slots: those of what was written, unless it was taken back later.
    #[serde(skip)]
    pub(crate) slots: usize,
}

impl Reached {
    /// Notes how large the function is now.
    pub(crate) fn note(&mut self, slots: usize, seconds: f64, proposals: u64) {
        if slots != self.slots {
            *self = Reached { seconds, proposals, slots };
        }
    }
}

#[cfg(test)]
mod tests {
    use bpf_program::ProgKind;
    use bpf_testgen::listing;

    use super::*;

    fn function(text: &str) -> Function {
        listing::function(ProgKind::Xdp, text)
    }

    #[test]
    fn the_longest_way_is_counted_in_blocks() {
        let f = function("if r1 == 0 goto a\nr0 = 1\nif r1 == 1 goto a\nr0 = 2\na: exit");
        assert_eq!(Shape::of(&f), Shape { blocks: 4, longest_path: Some(4) });
        let f = function("r0 = 0\na: r0 += 1\nif r0 < 10 goto a\nexit");
        assert_eq!(Shape::of(&f), Shape { blocks: 3, longest_path: None });
    }

    #[test]
    fn the_first_time_at_a_size_counts() {
        let mut reached = Reached { slots: 10, ..Reached::default() };
        reached.note(8, 1.0, 50);
        reached.note(8, 2.0, 70);
        assert_eq!((reached.seconds, reached.proposals), (1.0, 50));
        reached.note(9, 3.0, 80);
        assert_eq!((reached.seconds, reached.slots), (3.0, 9));
    }
}
