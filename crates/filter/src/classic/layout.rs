//! From items with labels to instructions: ways that end alike become one, jumps get their distances.

use rustc_hash::FxHashMap;

use super::code::{Classic, JA, JMP, RET};
use crate::program::BlockId;

/// A place to jump to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Label {
    Block(BlockId),
    /// One of the generator's own.
    Own(usize),
}

/// An instruction whose jumps have labels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Item {
    Plain { code: u16, k: u32 },
    Branch { code: u16, k: u32, yes: Label, no: Label },
    Jump(Label),
    Here(Label),
}

/// An instruction with those that may come next.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Step {
    /// One that ends the program.
    Return(u32),
    Plain {
        code: u16,
        k: u32,
        next: usize,
    },
    Branch {
        code: u16,
        k: u32,
        yes: usize,
        no: usize,
    },
}

/// Ways that end alike become one: what an instruction does depends on what the registers hold, and not on what that is.
///
/// Programs that jump backward stay as they are.
pub(super) fn merge(items: Vec<Item>) -> Vec<Item> {
    let mut labels: FxHashMap<Label, usize> = FxHashMap::default();
    for (i, item) in items.iter().enumerate() {
        if let Item::Here(label) = item {
            labels.insert(*label, i);
        }
    }
    let goes_back = |i: usize, label: &Label| labels[label] < i;
    let has_loop = items.iter().enumerate().any(|(i, item)| match item {
        Item::Jump(label) => goes_back(i, label),
        Item::Branch { yes, no, .. } => goes_back(i, yes) || goes_back(i, no),
        _ => false,
    });
    if has_loop {
        return items;
    }
    // By item the step that comes there.
    let mut steps: Vec<Step> = Vec::new();
    let mut known: FxHashMap<Step, usize> = FxHashMap::default();
    let mut at: Vec<usize> = vec![usize::MAX; items.len() + 1];
    for (i, item) in items.iter().enumerate().rev() {
        let step = match item {
            Item::Here(_) => {
                at[i] = at[i + 1];
                continue;
            }
            Item::Jump(label) => {
                at[i] = at[labels[label]];
                continue;
            }
            Item::Plain { code: RET, k } => Step::Return(*k),
            Item::Plain { code, k } => Step::Plain { code: *code, k: *k, next: at[i + 1] },
            Item::Branch { code, k, yes, no } => {
                Step::Branch { code: *code, k: *k, yes: at[labels[yes]], no: at[labels[no]] }
            }
        };
        at[i] = *known.entry(step).or_insert_with(|| {
            steps.push(step);
            steps.len() - 1
        });
    }
    lay_out(&steps, at[0])
}

/// The steps in a line, from the first on: what comes next follows if it can.
fn lay_out(steps: &[Step], first: usize) -> Vec<Item> {
    // Steps stand behind those that they go to.
    let mut reached = vec![false; steps.len()];
    reached[first] = true;
    let mut post = Vec::new();
    let mut stack = vec![(first, false)];
    let mut seen = vec![false; steps.len()];
    while let Some((i, left)) = stack.pop() {
        if left {
            post.push(i);
            continue;
        }
        if std::mem::replace(&mut seen[i], true) {
            continue;
        }
        stack.push((i, true));
        match steps[i] {
            Step::Return(_) => {}
            Step::Plain { next, .. } => stack.push((next, false)),
            Step::Branch { yes, no, .. } => stack.extend([(yes, false), (no, false)]),
        }
    }
    post.reverse();
    let mut items = Vec::with_capacity(post.len() * 2);
    for (i, step) in post.iter().enumerate() {
        let here = |s: usize| Label::Own(s);
        items.push(Item::Here(here(*step)));
        match steps[*step] {
            Step::Return(k) => items.push(Item::Plain { code: RET, k }),
            Step::Plain { code, k, next } => {
                items.push(Item::Plain { code, k });
                if post.get(i + 1) != Some(&next) {
                    // A copy of what ends there costs no more than the jump.
                    items.push(match steps[next] {
                        Step::Return(k) => Item::Plain { code: RET, k },
                        Step::Branch { code, k, yes, no } => Item::Branch { code, k, yes: here(yes), no: here(no) },
                        Step::Plain { .. } => Item::Jump(here(next)),
                    });
                }
            }
            Step::Branch { code, k, yes, no } => items.push(Item::Branch { code, k, yes: here(yes), no: here(no) }),
        }
    }
    items
}

/// Jumps get their distances; what is too far goes by way of a jump behind the branch.
pub(super) fn assemble(items: Vec<Item>) -> Vec<Classic> {
    // By branch: whether its two ways need a jump of their own.
    let mut far: FxHashMap<usize, (bool, bool)> = FxHashMap::default();
    loop {
        let mut labels: FxHashMap<Label, usize> = FxHashMap::default();
        let mut at = 0;
        let mut places = Vec::with_capacity(items.len());
        for (i, item) in items.iter().enumerate() {
            places.push(at);
            match item {
                Item::Here(label) => {
                    labels.insert(*label, at);
                }
                Item::Branch { .. } => {
                    let (yes, no) = far.get(&i).copied().unwrap_or_default();
                    at += 1 + usize::from(yes) + usize::from(no);
                }
                _ => at += 1,
            }
        }
        let mut changed = false;
        for (i, item) in items.iter().enumerate() {
            let Item::Branch { yes, no, .. } = item else { continue };
            let of = far.entry(i).or_default();
            let is_far = |label: &Label| labels[label].checked_sub(places[i] + 1).is_none_or(|d| d > 255);
            let now = (of.0 || is_far(yes), of.1 || is_far(no));
            changed |= now != *of;
            *of = now;
        }
        if changed {
            continue;
        }
        let mut out = Vec::with_capacity(at);
        for (i, item) in items.iter().enumerate() {
            let distance = |from: usize, label: &Label| (labels[label] as i64 - from as i64 - 1) as i32 as u32;
            match item {
                Item::Here(_) => {}
                Item::Plain { code, k } => out.push(Classic { code: *code, jt: 0, jf: 0, k: *k }),
                Item::Jump(label) => out.push(Classic { code: JMP | JA, jt: 0, jf: 0, k: distance(out.len(), label) }),
                Item::Branch { code, k, yes, no } => {
                    let here = out.len();
                    let (yes_far, no_far) = far[&i];
                    let jt = if yes_far { 0 } else { distance(here, yes) as u8 };
                    let jf = if no_far { u8::from(yes_far) } else { distance(here, no) as u8 };
                    out.push(Classic { code: *code, jt, jf, k: *k });
                    for label in [yes_far.then_some(yes), no_far.then_some(no)].into_iter().flatten() {
                        out.push(Classic { code: JMP | JA, jt: 0, jf: 0, k: distance(out.len(), label) });
                    }
                }
            }
        }
        return out;
    }
}
