//! Copies that nobody needs, and the result that most packets have set once.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::steps::Item;

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
        // A load by way of `skb` reads r6.
        return (CALLER_SAVED & !1 | 1 << 6, CALLER_SAVED);
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
fn live(items: &[Item<String, usize>]) -> Option<Vec<Set>> {
    let mut before: Vec<Set> = vec![0; items.len() + 1];
    let mut behind: Vec<Set> = vec![0; items.len()];
    let labels: FxHashMap<usize, usize> =
        items.iter().enumerate().filter_map(|(i, item)| Some((here(item)?, i))).collect();
    let at = |label: &usize, i: usize| labels.get(label).copied().filter(|to| *to > i);
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
fn here(item: &Item<String, usize>) -> Option<usize> {
    match item {
        Item::Here(label) => Some(*label),
        _ => None,
    }
}

/// Labels go to which nothing jumps.
pub(super) fn without_labels(items: Vec<Item<String, usize>>) -> Vec<Item<String, usize>> {
    let mut wanted: FxHashSet<usize> = FxHashSet::default();
    for item in &items {
        match item {
            Item::Jump(to) => wanted.extend([*to]),
            Item::Branch { yes, no, .. } => wanted.extend([*yes, *no]),
            _ => {}
        }
    }
    items.into_iter().filter(|item| here(item).is_none_or(|label| wanted.contains(&label))).collect()
}

/// A value that is only copied is computed where the copy is.
pub(super) fn without_copies(mut items: Vec<Item<String, usize>>) -> Vec<Item<String, usize>> {
    let mut i = 0;
    while i < items.len() {
        if let Some(first) = first_of_copied(&items, i) {
            let (to, from) = copy(&items[i]).unwrap_or_default();
            for item in &mut items[first..i] {
                if let Item::Plain(text) = item {
                    *text = renamed(text, from, to);
                }
            }
            items.remove(i);
        } else {
            i += 1;
        }
    }
    items
}

/// The registers of a copy: to and from.
fn copy(item: &Item<String, usize>) -> Option<(u8, u8)> {
    let Item::Plain(text) = item else { return None };
    let (to, from) = text.split_once(" = ")?;
    let register = |text: &str| text.strip_prefix('r').filter(|n| n.len() == 1)?.parse::<u8>().ok();
    Some((register(to)?, register(from)?))
}

/// Where the value is first written that an item copies, if nobody else reads it and nothing stands against its having the other register.
fn first_of_copied(items: &[Item<String, usize>], i: usize) -> Option<usize> {
    let (to, from) = copy(&items[i])?;
    if live(items)?[i] >> from & 1 == 1 {
        return None;
    }
    for (k, item) in items[..i].iter().enumerate().rev() {
        let Item::Plain(text) = item else { return None };
        let (reads, writes) = effects(text);
        if (reads | writes) >> to & 1 == 1 || is_call(text) {
            return None;
        }
        if writes >> from & 1 == 1 && reads >> from & 1 == 0 {
            return Some(k);
        }
    }
    None
}

/// The program returns `other` unless it says something else: that is set once, in front of `body`, and not at each end.
///
/// For that `r0` must be free, which another register may make it.
pub(super) fn with_result_first(
    mut items: Vec<Item<String, usize>>,
    body: usize,
    other: i32,
) -> Vec<Item<String, usize>> {
    let result = format!("w0 = {other}");
    let is_end = |items: &[Item<String, usize>], i: usize| matches!(items.get(i + 1), Some(Item::End(_)));
    let returns = |items: &[Item<String, usize>], i: usize| {
        is_end(items, i) && matches!(&items[i], Item::Plain(text) if text.starts_with("w0 = "))
    };
    let Some(start) = items.iter().position(|item| *item == Item::Here(body)) else { return items };
    let rejects = items.iter().enumerate().any(|(i, item)| *item == Item::Plain(result.clone()) && returns(&items, i));
    let accepts = (0..items.len()).any(|i| returns(&items, i) && items[i] != Item::Plain(result.clone()));
    if !rejects || !accepts {
        return items;
    }
    let texts = |from: usize| {
        items.iter().enumerate().skip(from).filter(|(i, _)| !returns(&items, *i)).filter_map(|(_, item)| match item {
            Item::Plain(text) | Item::Branch { test: text, .. } => Some(text),
            _ => None,
        })
    };
    if texts(start).any(|text| is_call(text)) {
        return items;
    }
    let used = texts(start).fold(0, |set, text| set | named(text).fold(0, |set: Set, (_, r)| set | 1 << r));
    if used & 1 == 1 {
        let Some(free) = (1..10).find(|r| used >> r & 1 == 0) else { return items };
        for i in start..items.len() {
            if !returns(&items, i)
                && let Item::Plain(text) | Item::Branch { test: text, .. } = &mut items[i]
            {
                *text = renamed(text, 0, free);
            }
        }
    }
    let mut out = Vec::with_capacity(items.len());
    for i in 0..items.len() {
        if returns(&items, i) && items[i] == Item::Plain(result.clone()) {
            continue;
        }
        out.push(items[i].clone());
        if i == start {
            out.push(Item::Plain(result.clone()));
        }
    }
    out
}
