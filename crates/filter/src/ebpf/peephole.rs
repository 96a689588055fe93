//! Copies that nobody needs, and the result that most packets have set once.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::steps::{Item, Label};

/// Registers, one bit each.
type Set = u16;

/// Registers that a call may change: r0 to r5.
const CALLER_SAVED: Set = 0b11_1111;

/// The registers that a line names: where, and which.
fn named(text: &str) -> impl Iterator<Item = (usize, u8)> {
    let bytes = text.as_bytes();
    let is_word = |i: usize| bytes.get(i).is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
    (0..bytes.len()).filter_map(move |i| {
        let digit = bytes.get(i + 1).filter(|d| d.is_ascii_digit())?;
        let is_one = matches!(bytes[i], b'r' | b'w') && !is_word(i + 2) && (i == 0 || !is_word(i - 1));
        is_one.then_some((i, digit - b'0'))
    })
}

/// The text with another register in the place of one.
fn renamed(text: &str, from: u8, to: u8) -> String {
    let mut out = text.to_owned();
    for (at, register) in named(text) {
        if register == from {
            out.replace_range(at + 1..at + 2, &to.to_string());
        }
    }
    out
}

/// A call, or a legacy load from the packet, which is one.
fn is_call(text: &str) -> bool {
    text.starts_with("call ") || text.contains("skb[")
}

/// The registers that a line reads, and those that it writes.
fn effects(text: &str) -> (Set, Set) {
    let all = |text: &str| named(text).fold(0, |set, (_, r)| set | 1 << r);
    if is_call(text) {
        // A load by way of `skb` reads r6, and its base.
        let base = text.split_once(" = ").map_or(0, |(_, right)| all(right));
        return (CALLER_SAVED & !1 | 1 << 6 | base, CALLER_SAVED);
    }
    let Some((left, right)) = text.split_once(" = ") else {
        // Arithmetic in place. (`+=` has no ` = `.) A store would have one.
        let writes = named(text).next().filter(|(at, _)| *at == 0).map_or(0, |(_, r)| 1 << r);
        return (all(text), writes);
    };
    match named(left).next() {
        Some((0, _)) => (all(right), all(left)),
        // A store.
        _ => (all(text), 0),
    }
}

/// Per item the registers that are read behind it before they are written. `None` for programs that jump backward.
fn live(items: &[Item<String>]) -> Option<Vec<Set>> {
    let mut before: Vec<Set> = vec![0; items.len() + 1];
    let mut behind: Vec<Set> = vec![0; items.len()];
    let labels: FxHashMap<Label, usize> =
        items.iter().enumerate().filter_map(|(i, item)| Some((here(item)?, i))).collect();
    let at = |label: &Label, i: usize| labels.get(label).copied().filter(|to| *to > i);
    for (i, item) in items.iter().enumerate().rev() {
        behind[i] = match item {
            Item::Plain(_) | Item::Here(_) => before[i + 1],
            Item::End(_) => 1,
            Item::Jump(to) => before[at(to, i)?],
            Item::Branch { yes, no, .. } => before[at(yes, i)?] | before[at(no, i)?],
        };
        let (reads, writes) = match item {
            Item::Plain(text) => effects(text),
            Item::Branch { test, .. } => (effects(test).0, 0),
            _ => (0, 0),
        };
        before[i] = behind[i] & !writes | reads;
    }
    Some(behind)
}

/// The label that an item is.
fn here(item: &Item<String>) -> Option<Label> {
    match item {
        Item::Here(label) => Some(*label),
        _ => None,
    }
}

/// Labels go to which nothing jumps.
pub(super) fn without_labels(items: Vec<Item<String>>) -> Vec<Item<String>> {
    let mut wanted: FxHashSet<Label> = FxHashSet::default();
    for item in &items {
        match item {
            Item::Jump(to) => wanted.extend([*to]),
            Item::Branch { yes, no, .. } => wanted.extend([*yes, *no]),
            _ => {}
        }
    }
    items.into_iter().filter(|item| here(item).is_none_or(|label| wanted.contains(&label))).collect()
}

/// A value that is only copied is computed where the copy is. `None` for programs that jump backward.
pub(super) fn without_copies(mut items: Vec<Item<String>>) -> Option<Vec<Item<String>>> {
    let mut behind = live(&items)?;
    let mut i = 0;
    while i < items.len() {
        let Some(Copied { to, from, first }) = copied(&items, i, behind[i]) else {
            i += 1;
            continue;
        };
        for item in &mut items[first..i] {
            if let Item::Plain(text) = item {
                *text = renamed(text, from, to);
            }
        }
        items.remove(i);
        behind = live(&items)?;
    }
    Some(items)
}

/// The registers of a copy: to and from.
fn copy(item: &Item<String>) -> Option<(u8, u8)> {
    let Item::Plain(text) = item else { return None };
    let (to, from) = text.split_once(" = ")?;
    let register = |text: &str| text.strip_prefix('r').filter(|n| n.len() == 1)?.parse::<u8>().ok();
    Some((register(to)?, register(from)?))
}

/// A copy without which a program can do.
struct Copied {
    to: u8,
    from: u8,
    /// Where the value is first written.
    first: usize,
}

/// The copy that an item is, if nobody reads its value `behind` it in the old place, and nothing stands against computing it in the
/// new one.
fn copied(items: &[Item<String>], i: usize, behind: Set) -> Option<Copied> {
    let (to, from) = copy(&items[i])?;
    if behind >> from & 1 == 1 {
        return None;
    }
    for (first, item) in items[..i].iter().enumerate().rev() {
        let Item::Plain(text) = item else { return None };
        let (reads, writes) = effects(text);
        if (reads | writes) >> to & 1 == 1 || is_call(text) {
            return None;
        }
        if writes >> from & 1 == 1 && reads >> from & 1 == 0 {
            return Some(Copied { to, from, first });
        }
    }
    None
}

/// The program returns `other` unless it says something else: that is set once, in front of `body`, and not at each end.
///
/// For that `r0` must be free, which another register may make it.
pub(super) fn with_result_first(items: Vec<Item<String>>, body: Label, other: i32) -> Vec<Item<String>> {
    let Some(start) = items.iter().position(|item| *item == Item::Here(body)) else { return items };
    let result = format!("w0 = {other}");
    // By item whether it sets what the program returns.
    let returns: Vec<bool> = (0..items.len())
        .map(|i| {
            let is_result = matches!(&items[i], Item::Plain(text) if text.starts_with("w0 = "));
            is_result && matches!(items.get(i + 1), Some(Item::End(_)))
        })
        .collect();
    let is_other = |i: usize| returns[i] && matches!(&items[i], Item::Plain(text) if *text == result);
    let is_both = (0..items.len()).any(is_other) && (0..items.len()).any(|i| returns[i] && !is_other(i));
    let mut used: Set = 0;
    for (i, item) in items.iter().enumerate().skip(start) {
        if let (false, Item::Plain(text) | Item::Branch { test: text, .. }) = (returns[i], item) {
            if is_call(text) {
                return items;
            }
            used |= named(text).fold(0, |set, (_, r)| set | 1 << r);
        }
    }
    // r0 is its own name if it is free.
    let free = (0..10).find(|r| used >> r & 1 == 0);
    let (true, Some(free)) = (is_both, free) else { return items };
    let mut out = Vec::with_capacity(items.len());
    for (i, item) in items.iter().enumerate() {
        let of = |text: &String| if returns[i] || i < start { text.clone() } else { renamed(text, 0, free) };
        match item {
            _ if is_other(i) => {}
            Item::Plain(text) => out.push(Item::Plain(of(text))),
            Item::Branch { test, yes, no } => out.push(Item::Branch { test: of(test), yes: *yes, no: *no }),
            item => out.push(item.clone()),
        }
        if i == start {
            out.push(Item::Plain(result.clone()));
        }
    }
    out
}
