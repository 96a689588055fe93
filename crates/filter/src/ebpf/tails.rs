//! A listing made shorter: ways that end alike become one, and as much as can follows what goes there.

use std::fmt::Write;

use rustc_hash::{FxHashMap, FxHashSet};

use super::peephole::{with_result_first, without_copies, without_labels};
use crate::steps::{Item, Label, Step, Steps};

/// The listing of a program, in as few instructions as can be. `body` is where it begins behind what comes before the filter, `other`
/// what it mostly returns. `None`: it jumps backward.
pub(super) fn shortened(items: Vec<Item<String>>, body: Label, other: i32) -> Option<String> {
    let items = with_result_first(items, body, other);
    let items = without_copies(without_labels(items))?;
    Some(lay_out(&Steps::of(&items)?))
}

/// Comparisons and their opposites. Of two the first stands in steps.
const OPPOSITES: [(&str, &str); 3] = [("==", "!="), (">", "<="), (">=", "<")];

/// A test with another operator, which `other` gives; `None` if it gives none.
fn with_operator(test: &str, other: impl Fn(&str) -> Option<&'static str>) -> Option<String> {
    let (left, rest) = test.split_once(' ')?;
    let (operator, right) = rest.split_once(' ')?;
    Some(format!("{left} {} {right}", other(operator)?))
}

/// A comparison with the opposite operator; `None` of one that has none.
fn opposite(test: &str) -> Option<String> {
    with_operator(test, |operator| OPPOSITES.iter().find(|(one, _)| *one == operator).map(|(_, other)| *other))
}

/// A test of a register, in the form in which tests stand in steps.
pub(super) fn as_test(test: &str, yes: Label, no: Label) -> Item<String> {
    let turned =
        with_operator(test, |operator| OPPOSITES.iter().find(|(_, other)| *other == operator).map(|(one, _)| *one));
    match turned {
        Some(test) => Item::Branch { test, yes: no, no: yes },
        None => Item::Branch { test: test.to_owned(), yes, no },
    }
}

/// By step the one that follows it: as many as can, which is a maximum matching of steps and those that they go to.
fn followers(steps: &Steps<String>, order: &[usize]) -> FxHashMap<usize, usize> {
    let candidates = |step: usize| -> Vec<usize> {
        match &steps.all[step] {
            // Without an opposite only the other way can follow.
            Step::Branch { test, no, .. } if opposite(test).is_none() => vec![*no],
            step => step.successors().rev().collect(),
        }
    };
    let mut before: FxHashMap<usize, usize> = FxHashMap::default();
    for step in order.iter().rev() {
        // A chain of steps that would all have another follower: from each its candidates, and the one to try next.
        let mut tried = FxHashSet::default();
        let mut way = vec![(*step, candidates(*step), 0)];
        while let Some((_, open, next)) = way.last_mut() {
            let Some(to) = open.get(*next).copied() else {
                way.pop();
                continue;
            };
            *next += 1;
            if !tried.insert(to) {
                continue;
            }
            match before.get(&to) {
                Some(other) => way.push((*other, candidates(*other), 0)),
                None => {
                    for (step, open, next) in way.drain(..) {
                        before.insert(open[next - 1], step);
                    }
                }
            }
        }
    }
    before.into_iter().map(|(to, step)| (step, to)).collect()
}

fn lay_out(steps: &Steps<String>) -> String {
    let order = steps.order();
    let follows = followers(steps, &order);
    let is_follower: FxHashSet<usize> = follows.values().copied().collect();
    let mut line: Vec<usize> = Vec::with_capacity(order.len());
    for first in order.iter().filter(|step| !is_follower.contains(step)) {
        let mut at = Some(*first);
        while let Some(step) = at {
            line.push(step);
            at = follows.get(&step).copied();
        }
    }
    let mut targets = FxHashSet::default();
    let mut lines: Vec<(usize, String)> = Vec::new();
    for (i, step) in line.iter().enumerate() {
        let after = line.get(i + 1).copied();
        let mut goto = |to: usize| {
            targets.insert(to);
            format!("goto l{to}")
        };
        match &steps.all[*step] {
            Step::End(what) => lines.push((*step, what.clone())),
            Step::Plain { what, next } => {
                lines.push((*step, what.clone()));
                if after != Some(*next) {
                    lines.push((usize::MAX, goto(*next)));
                }
            }
            Step::Branch { test, yes, no } => match opposite(test) {
                Some(test) if after == Some(*yes) => lines.push((*step, format!("if {test} {}", goto(*no)))),
                _ => {
                    lines.push((*step, format!("if {test} {}", goto(*yes))));
                    if after != Some(*no) {
                        lines.push((usize::MAX, goto(*no)));
                    }
                }
            },
        }
    }
    let mut text = String::new();
    for (step, line) in lines {
        if targets.contains(&step) {
            let _ = writeln!(text, "l{step}:");
        }
        let _ = writeln!(text, "    {line}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::BlockId;

    /// The lines as items, and the label of the program's first block. A branch to one place is a test whose other way follows.
    fn items(listing: &str) -> (Vec<Item<String>>, Label) {
        let mut labels: FxHashMap<&str, usize> = FxHashMap::default();
        let mut all = Vec::new();
        for (i, line) in listing.lines().enumerate() {
            let mut label = |name| {
                let next = labels.len();
                Label::Own(*labels.entry(name).or_insert(next))
            };
            let line = line.trim();
            if let Some(name) = line.strip_suffix(':') {
                all.push(Item::Here(label(name)));
            } else if let Some(name) = line.strip_prefix("goto ") {
                all.push(Item::Jump(label(name)));
            } else if let Some((test, name)) = line.strip_prefix("if ").and_then(|l| l.split_once(" goto ")) {
                let behind = Label::Block(BlockId(i));
                all.extend([as_test(test, label(name), behind), Item::Here(behind)]);
            } else if line == "exit" {
                all.push(Item::End(line.to_owned()));
            } else {
                all.push(Item::Plain(line.to_owned()));
            }
        }
        (all, Label::Own(labels["b0"]))
    }

    /// What jumps backward stays as it is.
    fn shortened(listing: &str, other: i32) -> String {
        let (items, body) = items(listing);
        super::shortened(items, body, other).unwrap_or_else(|| listing.to_owned())
    }

    /// The lines, without the labels' names, which say nothing.
    fn lines(listing: &str) -> Vec<String> {
        listing.lines().map(|l| l.trim().to_owned()).filter(|l| !l.ends_with(':')).collect()
    }

    #[test]
    fn ways_that_end_alike_are_one() {
        let listing = "b0:\n r5 = *(u32 *)(r1 + 0)\n if w5 != 8 goto b2\nb1:\n r6 = r5\n r6 += 1\n if w6 == 3 goto yes\n goto no\n\
                       b2:\n r5 += 7\n r6 = r5\n r6 += 1\n if w6 != 3 goto no\nyes:\n w0 = 1\n exit\nno:\n w0 = 0\n exit\n";
        let short = shortened(listing, 7);
        assert_eq!(lines(&short).iter().filter(|l| *l == "r6 += 1" || *l == "r5 += 1").count(), 1, "{short}");
        assert!(lines(&short).len() < lines(listing).len() - 3, "{short}");
    }

    #[test]
    fn copies_of_what_nobody_else_reads_go() {
        let copied = "b0:\n r2 = *(u32 *)(r1 + 0)\n r5 = r2\n r5 += 14\n r0 = *(u16 *)(r5 - 2)\n exit\n";
        let short = shortened(copied, 1);
        assert_eq!(lines(&short), ["r5 = *(u32 *)(r1 + 0)", "r5 += 14", "r0 = *(u16 *)(r5 - 2)", "exit"]);
        // Read again, or on one way only: it stays.
        let again = copied.replace(" exit", " r0 = *(u8 *)(r2 + 0)\n exit");
        assert_eq!(lines(&shortened(&again, 1)), lines(&again));
        let one_way = copied.replace(" exit", " if w0 == 1 goto b1\n exit\nb1:\n r0 = *(u8 *)(r2 + 0)\n exit");
        assert!(shortened(&one_way, 1).contains("r5 = r2"));
        // The copy's register is in use where the value is written.
        let used =
            "b0:\n r2 = *(u32 *)(r1 + 0)\n r4 = *(u32 *)(r5 + 0)\n r5 = r2\n r0 = *(u8 *)(r5 + 0)\n r0 += r4\n exit\n";
        assert_eq!(lines(&shortened(used, 1)), lines(used));
    }

    #[test]
    fn what_is_mostly_returned_is_set_once() {
        let listing = "b0:\n r0 = *(u32 *)(r1 + 0)\n if w0 == 5 goto b1\n w0 = 1\n exit\nb1:\n w0 = 2\n exit\n";
        let short = shortened(listing, 1);
        assert_eq!(lines(&short).iter().filter(|l| l.starts_with("w0 = 1")).count(), 1);
        assert_eq!(lines(&short)[0], "w0 = 1", "{short}");
        assert_eq!(lines(&short).iter().filter(|l| *l == "exit").count(), 1, "{short}");
        // A call changes r0, and so does a legacy load.
        for call in ["call bpf_get_prandom_u32", "r0 = *(u8 *)skb[7]"] {
            let short = shortened(&listing.replace("r0 = *(u32 *)(r1 + 0)", call), 1);
            assert!(lines(&short)[0] == call, "{short}");
        }
    }

    #[test]
    fn what_jumps_backward_stays() {
        let listing = "b0:\n r2 = r1\n goto b1\nb1:\n r2 += 1\n if w2 > 9 goto b0\n exit\n";
        assert_eq!(shortened(listing, 1), listing);
    }
}
