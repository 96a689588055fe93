//! Which section, map and function of the second object stands for which of the first.
//!
//! The one idea: sections and maps are matched by name, and where names repeat by their order, because that is how
//! loaders and users find them. Functions are matched by section and name; static functions that share both can be told
//! apart by nothing a loader keeps, so every way of pairing them is a matching of its own, the likeliest first: the one
//! that follows the calls of functions already paired. Promise: a matching pairs one with one; whatever is proven under
//! any single matching, for all pairs at once, holds for the objects.

use std::collections::{BTreeMap, HashMap};

use crate::functions::{FuncId, FuncKind, Function, RefKind};
use crate::object::Object;

/// More ways than this to pair functions of one name are not gone through.
const MATCHINGS_MAX: usize = 24;
/// Of more functions of one name only the given order is tried, beside that of their calls.
const ORDERED_MAX: usize = 8;

/// A pairing of the two objects' parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matching {
    /// For each function of the first object, its partner.
    functions: Vec<Option<FuncId>>,
    /// For each function of the second object, its partner.
    functions_back: Vec<Option<FuncId>>,
    /// For each section of the first object (by number), its partner.
    pub(super) sections: Vec<Option<usize>>,
    pub(super) sections_back: Vec<Option<usize>>,
    pub(super) maps: Vec<Option<usize>>,
    maps_back: Vec<Option<usize>>,
}

/// The matchings worth trying.
#[derive(Clone, Debug)]
pub struct Matchings {
    /// The likeliest first; never empty.
    pub list: Vec<Matching>,
    /// Whether there is no other.
    pub complete: bool,
}

impl Matching {
    /// Functions and maps with those of their number, sections as given.
    pub(super) fn in_place(
        functions: usize,
        maps: usize,
        sections: Vec<Option<usize>>,
        sections_back: Vec<Option<usize>>,
    ) -> Self {
        let functions: Vec<Option<FuncId>> = (0..functions).map(|i| Some(FuncId(i))).collect();
        let maps: Vec<Option<usize>> = (0..maps).map(Some).collect();
        let (functions_back, maps_back) = (functions.clone(), maps.clone());
        Matching { functions, functions_back, sections, sections_back, maps, maps_back }
    }

    /// The partner of a function of the first object.
    #[must_use]
    pub fn function(&self, a: FuncId) -> Option<FuncId> {
        self.functions.get(a.0).copied().flatten()
    }

    /// The partner of a function of the second object.
    #[must_use]
    pub fn function_back(&self, b: FuncId) -> Option<FuncId> {
        self.functions_back.get(b.0).copied().flatten()
    }

    /// The partner of a map of the second object, as an index into the first one's [`Object::maps`].
    #[must_use]
    pub fn map_back(&self, b: usize) -> Option<usize> {
        self.maps_back.get(b).copied().flatten()
    }

    /// The unique name ([`RefKind::Data`]) of the section of the first object that stands for this one of the second.
    #[must_use]
    pub fn section_name_back<'a>(&self, a: &'a Object, b: &Object, name: &str) -> Option<&'a str> {
        let there = b.elf.sections.iter().position(|s| s.identity == name)?;
        let here = self.sections_back.get(there).copied().flatten()?;
        a.elf.sections.get(here).map(|s| s.identity.as_str())
    }

    fn pair(&mut self, a: usize, b: usize) {
        if let (Some(to), Some(back)) = (self.functions.get_mut(a), self.functions_back.get_mut(b)) {
            (*to, *back) = (Some(FuncId(b)), Some(FuncId(a)));
        }
    }
}

/// Functions that share section and name: the first object's and the second's, in file order.
#[derive(Default)]
struct Group {
    a: Vec<usize>,
    b: Vec<usize>,
    /// Whether nothing but calls tells them apart.
    anonymous: bool,
}

/// Pairs the parts of two objects.
#[must_use]
pub fn matchings(a: &Object, b: &Object) -> Matchings {
    let (sections, sections_back) = pair_by_key(&section_names(a), &section_names(b));
    let map_key = |o: &Object, back: &dyn Fn(usize) -> Option<usize>| -> Vec<Option<(Option<usize>, String)>> {
        let mut keys = vec![None; o.maps.defs.len()];
        for (&(section, _), &map) in &o.maps.places {
            if let (Some(key), Some(def)) = (keys.get_mut(map), o.maps.defs.get(map)) {
                *key = Some((back(section), def.name.clone()));
            }
        }
        keys
    };
    let (maps, maps_back) = pair_by_key(&map_key(a, &Some), &map_key(b, &|s| sections_back.get(s).copied().flatten()));
    let mut groups: BTreeMap<(Option<usize>, String), Group> = BTreeMap::new();
    for (i, f) in a.functions().iter().enumerate() {
        groups.entry((Some(f.section_index), f.name.clone())).or_default().a.push(i);
    }
    for (j, f) in b.functions().iter().enumerate() {
        let section = sections_back.get(f.section_index).copied().flatten();
        groups.entry((section, f.name.clone())).or_default().b.push(j);
    }
    let is_static = |f: Option<&Function>| f.is_some_and(|f| f.kind == FuncKind::Static);
    let mut groups: Vec<Group> = groups.into_values().collect();
    for g in &mut groups {
        let all_static = g.a.iter().all(|&i| is_static(a.functions().get(i)))
            && g.b.iter().all(|&j| is_static(b.functions().get(j)));
        g.anonymous = all_static && g.a.len() == g.b.len() && g.a.len() > 1;
    }
    let mut base = Matching {
        functions: vec![None; a.functions().len()],
        functions_back: vec![None; b.functions().len()],
        sections,
        sections_back,
        maps,
        maps_back,
    };
    for g in groups.iter().filter(|g| !g.anonymous) {
        for (&i, &j) in g.a.iter().zip(&g.b) {
            base.pair(i, j);
        }
    }
    groups.retain(|g| g.anonymous);
    let mut list = vec![by_calls(a, b, &groups, base.clone())];
    let mut complete = true;
    let mut open = vec![base];
    for g in &groups {
        let orders = orders(g.b.len());
        complete &= orders.1;
        let mut next = Vec::new();
        for m in &open {
            for order in &orders.0 {
                if next.len() >= MATCHINGS_MAX {
                    complete = false;
                    break;
                }
                let mut m = m.clone();
                for (&i, &n) in g.a.iter().zip(order) {
                    if let Some(&j) = g.b.get(n) {
                        m.pair(i, j);
                    }
                }
                next.push(m);
            }
        }
        open = next;
    }
    for m in open {
        if !list.contains(&m) {
            list.push(m);
        }
    }
    Matchings { list, complete }
}

/// The sections that a name identifies: all with contents, but for relocations and strings, which belong to others.
fn section_names(o: &Object) -> Vec<Option<String>> {
    let mut names: Vec<Option<String>> = Vec::new();
    for s in &o.elf.sections {
        names.push((s.kind != 0 && s.size > 0 && !s.is_reloc()).then(|| s.name.clone()));
    }
    names
}

type Pairs = (Vec<Option<usize>>, Vec<Option<usize>>);

/// Pairs what has equal keys; of several with one key the first with the first, and so on.
fn pair_by_key<K: Eq + std::hash::Hash + Clone>(a: &[Option<K>], b: &[Option<K>]) -> Pairs {
    let mut places: HashMap<K, Vec<usize>> = HashMap::new();
    for (j, key) in b.iter().enumerate().rev() {
        if let Some(key) = key {
            places.entry(key.clone()).or_default().push(j);
        }
    }
    let (mut to, mut back) = (vec![None; a.len()], vec![None; b.len()]);
    for ((i, key), to) in a.iter().enumerate().zip(&mut to) {
        let partner = key.as_ref().and_then(|k| places.get_mut(k)?.pop());
        *to = partner;
        if let Some(back) = partner.and_then(|j| back.get_mut(j)) {
            *back = Some(i);
        }
    }
    (to, back)
}

/// All orders of `n` things, the given one first, and whether these are all.
fn orders(n: usize) -> (Vec<Vec<usize>>, bool) {
    if n > ORDERED_MAX {
        return (vec![(0..n).collect()], false);
    }
    let mut found: Vec<Vec<usize>> = vec![vec![]];
    let mut complete = true;
    for k in 0..n {
        let mut longer = Vec::new();
        for order in &found {
            // The new number at the end first, so that the given order comes out first.
            for at in (0..=order.len()).rev() {
                let mut order = order.clone();
                order.insert(at, k);
                longer.push(order);
            }
        }
        if longer.len() > MATCHINGS_MAX {
            complete = false;
            longer.truncate(MATCHINGS_MAX);
        }
        found = longer;
    }
    (found, complete)
}

/// Follows the references of paired functions: the n-th function of a group that one refers to goes with the n-th that
/// the other refers to. What nothing refers to is paired in file order.
fn by_calls(a: &Object, b: &Object, groups: &[Group], mut m: Matching) -> Matching {
    let mut todo: Vec<(usize, usize)> =
        m.functions.iter().enumerate().filter_map(|(i, j)| Some((i, (*j)?.0))).collect();
    while let Some((i, j)) = todo.pop() {
        for g in groups {
            let (from, to) = (referred(a, i, &g.a), referred(b, j, &g.b));
            if from.len() != to.len() {
                continue;
            }
            for (i, j) in from.into_iter().zip(to) {
                if m.function(FuncId(i)).is_none() && m.function_back(FuncId(j)).is_none() {
                    m.pair(i, j);
                    todo.push((i, j));
                }
            }
        }
    }
    for g in groups {
        let free_a: Vec<usize> = g.a.iter().copied().filter(|&i| m.function(FuncId(i)).is_none()).collect();
        let free_b: Vec<usize> = g.b.iter().copied().filter(|&j| m.function_back(FuncId(j)).is_none()).collect();
        for (i, j) in free_a.into_iter().zip(free_b) {
            m.pair(i, j);
        }
    }
    m
}

/// Which of these functions a function refers to, in the order of their first reference.
fn referred(o: &Object, f: usize, among: &[usize]) -> Vec<usize> {
    let mut found = Vec::new();
    for r in o.refs(FuncId(f)) {
        if let RefKind::Call { target } | RefKind::FuncAddr { target } = r.kind
            && among.contains(&target.0)
            && !found.contains(&target.0)
        {
            found.push(target.0);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_orders_of_few_things_are_there_and_the_given_one_is_first() {
        let (all, complete) = orders(3);
        assert!(complete && all.len() == 6 && all[0] == [0, 1, 2]);
        let distinct: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), 6);
        assert!(!orders(6).1);
    }

    #[test]
    fn of_several_with_one_key_the_first_goes_with_the_first() {
        let (to, back) = pair_by_key(&[Some("x"), None, Some("y"), Some("x")], &[Some("x"), Some("x"), Some("z")]);
        assert_eq!(to, [Some(0), None, None, Some(1)]);
        assert_eq!(back, [Some(0), Some(3), None]);
    }
}
