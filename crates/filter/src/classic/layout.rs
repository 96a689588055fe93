//! From items with labels to instructions: ways that end alike become one, jumps get their distances.

use rustc_hash::FxHashMap;

use super::code::{Classic, JA, JMP, LD, LDX, MEM, MEMORY, ST, STX};
use super::spare::without_spare;
use crate::steps::{self, Label, Step, Steps};

/// An instruction whose jumps have labels: its code, and its number.
pub(super) type Item = steps::Item<(u16, u32)>;

/// The instructions. Ways that end alike become one; programs that jump backward stay as they are.
pub(super) fn instructions(items: Vec<Item>) -> Vec<Classic> {
    let Some(steps) = Steps::of(&items).map(|steps| without_spare(&steps)) else { return assemble(items) };
    let short = assemble(lay_out(&steps, false));
    if reads_what_is_stored(&short) { short } else { assemble(lay_out(&steps, true)) }
}

/// Whether the kernel sees that words of memory are stored before they are read (`check_load_and_stores` in net/core/filter.c): to it
/// what follows a return is reached from there, too.
fn reads_what_is_stored(instructions: &[Classic]) -> bool {
    const ALL: u16 = u16::MAX;
    const _: () = assert!(MEMORY == 16);
    let mut stored_on_jumps = vec![ALL; instructions.len()];
    let mut stored: u16 = 0;
    for (at, i) in instructions.iter().enumerate() {
        stored &= stored_on_jumps[at];
        let mut jump = |distance: u32| {
            if let Some(there) = stored_on_jumps.get_mut(at + 1 + distance as usize) {
                *there &= stored;
            }
        };
        match i.code {
            ST | STX => stored |= 1 << i.k,
            code if [LD | MEM, LDX | MEM].contains(&code) && stored >> i.k & 1 == 0 => return false,
            code if code == JMP | JA => {
                jump(i.k);
                stored = ALL;
            }
            code if code & 7 == JMP => {
                jump(i.jt.into());
                jump(i.jf.into());
                stored = ALL;
            }
            _ => {}
        }
    }
    true
}

/// The steps in a line, from the first on: what comes next follows if it can. Returns may all stand behind the rest.
fn lay_out(steps: &Steps<(u16, u32)>, ends_last: bool) -> Vec<Item> {
    let here = Label::Own;
    let mut order = steps.order();
    if ends_last {
        order.sort_by_key(|step| matches!(steps.all[*step], Step::End(_)));
    }
    let mut items = Vec::with_capacity(order.len() * 2);
    for (i, step) in order.iter().enumerate() {
        items.push(Item::Here(here(*step)));
        match &steps.all[*step] {
            Step::End(what) => items.push(Item::End(*what)),
            Step::Plain { what, next } => {
                items.push(Item::Plain(*what));
                if order.get(i + 1) != Some(next) {
                    // A copy of what ends there costs no more than the jump.
                    items.push(match &steps.all[*next] {
                        Step::End(what) if !ends_last => Item::End(*what),
                        Step::Branch { test, yes, no } => Item::Branch { test: *test, yes: here(*yes), no: here(*no) },
                        Step::Plain { .. } | Step::End(_) => Item::Jump(here(*next)),
                    });
                }
            }
            Step::Branch { test, yes, no } => {
                items.push(Item::Branch { test: *test, yes: here(*yes), no: here(*no) });
            }
        }
    }
    items
}

/// Jumps get their distances; what is too far goes by way of a jump behind the branch.
fn assemble(items: Vec<Item>) -> Vec<Classic> {
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
                Item::Plain((code, k)) | Item::End((code, k)) => out.push(Classic { code: *code, jt: 0, jf: 0, k: *k }),
                Item::Jump(label) => out.push(Classic { code: JMP | JA, jt: 0, jf: 0, k: distance(out.len(), label) }),
                Item::Branch { test: (code, k), yes, no } => {
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
