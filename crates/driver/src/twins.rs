//! Functions of one object that are the same: the work is done on one of them.
//!
//! Compilers clone functions, and sources include one body under several section names. Two functions whose graphs
//! differ in nothing but the name have the same proofs: what is proven of one is proven of the other, because a name is
//! for messages only ([`bpf_program::Function`]). So a derivation of one is one of the other. What is written is
//! compared with each one's own original all the same ([`crate::opinion`]), and the kernel is asked about each.

use bpf_passes::Settings;
use bpf_program::Function;
use rustc_hash::FxHashMap;

use crate::candidate::Candidate;

/// Who works for whom.
pub(crate) struct Twins {
    /// For each candidate the first one that is the same, which may be itself.
    first: Vec<usize>,
}

impl Twins {
    /// Those among the wanted ones that are the same as they were, and as they are now.
    pub(crate) fn of(candidates: &[Candidate], wanted: &[bool], settings: &Settings) -> Twins {
        let profile = |c: &Candidate| {
            let name = &c.function()?.name;
            Some((settings.profile(name), settings.importance.as_ref().and_then(|all| all.get(name))))
        };
        let mut leaders: FxHashMap<(usize, usize), Vec<usize>> = FxHashMap::default();
        let mut first: Vec<usize> = (0..candidates.len()).collect();
        for (i, c) in candidates.iter().enumerate() {
            let Some(f) = c.function().filter(|_| wanted[i] && c.report.untouched.is_none()) else { continue };
            let alike = leaders.entry((c.report.slots_before, f.blocks.len())).or_default();
            let is_twin = |j: usize| are_twins(&candidates[j], c) && profile(&candidates[j]) == profile(c);
            match alike.iter().find(|&&j| is_twin(j)) {
                Some(&j) => first[i] = j,
                None => alike.push(i),
            }
        }
        Twins { first }
    }

    /// Whether the work is done on this one.
    pub(crate) fn leads(&self, id: usize) -> bool {
        self.first[id] == id
    }

    /// Whether something holds of this one, and of all that it works for.
    pub(crate) fn all_of(&self, id: usize, holds: impl Fn(usize) -> bool) -> bool {
        self.first.iter().enumerate().filter(|(_, first)| **first == id).all(|(i, _)| holds(i))
    }

    /// Each function that is not worked on, with the one that is in its place.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        self.first.iter().copied().enumerate().filter(|(i, j)| i != j)
    }
}

/// Whether two functions were the same, are the same now, and the same may be done to them.
fn are_twins(a: &Candidate, b: &Candidate) -> bool {
    let same = |x: Option<&Function>, y: Option<&Function>| match (x, y) {
        (Some(x), Some(y)) => same_but_for_the_name(x, y),
        _ => false,
    };
    same(a.original(), b.original()) && same(a.function(), b.function()) && a.banned == b.banned
}

fn same_but_for_the_name(a: &Function, b: &Function) -> bool {
    let Function { name: _, kind, arguments, byte_order, blocks, layout } = a;
    (kind, arguments, byte_order, blocks, layout) == (&b.kind, &b.arguments, &b.byte_order, &b.blocks, &b.layout)
}

#[cfg(test)]
mod tests {
    use bpf_object::Object;

    use super::*;
    use crate::module::Module;

    fn candidates() -> (Module, Vec<Candidate>) {
        let bytes = include_bytes!("../../../examples/globals.o").to_vec();
        let mut module = Module::new(Object::parse(bytes).expect("a committed object"));
        // The second one becomes a copy of the first.
        let name = module.graphs[1].as_ref().expect("a graph").name.clone();
        let copy = Function { name, ..module.graphs[0].clone().expect("a graph") };
        module.graphs[1] = Ok(copy);
        let candidates = (0..module.graphs.len()).map(|i| Candidate::new(&module, i)).collect();
        (module, candidates)
    }

    #[test]
    fn functions_that_differ_in_their_names_alone_are_twins() {
        let (module, candidates) = candidates();
        assert_ne!(module.graphs[0].as_ref().expect("a graph").name, module.graphs[1].as_ref().expect("a graph").name);
        let same = are_twins(&candidates[0], &candidates[1]);
        assert!(same && candidates.len() > 1);
        assert!(candidates.iter().skip(2).all(|c| !are_twins(&candidates[0], c)));
    }

    /// What is known of a function is known by its name.
    #[test]
    fn what_is_taken_from_another_function_keeps_its_own_name() {
        let (mut module, mut candidates) = candidates();
        let settings = Settings::default();
        let own = |candidates: &[Candidate]| {
            let f = candidates[1].function().expect("a graph");
            (f.name.clone(), candidates[1].original().expect("a graph").name.clone(), candidates[1].body.is_some())
        };
        let name = candidates[1].function().expect("a graph").name.clone();
        let right = (name.clone(), name.clone(), true);
        candidates[0].run_passes(&module, &settings);
        Candidate::share(&mut candidates, &module, &settings, 0, 1);
        assert_eq!(own(&candidates), right);
        // The same from another object.
        module.shared = Some(std::sync::Arc::default());
        let mut candidates: Vec<Candidate> = (0..2).map(|i| Candidate::new(&module, i)).collect();
        candidates.iter_mut().for_each(|c| c.run_passes(&module, &settings));
        assert_eq!(module.shared.as_ref().expect("it was set").answered(), 1);
        assert_eq!(own(&candidates), right);
    }

    #[test]
    fn any_other_difference_tells_two_functions_apart() {
        let (module, mut candidates) = candidates();
        candidates[1].banned.insert(7);
        assert!(!are_twins(&candidates[0], &candidates[1]), "other changes are forbidden");
        candidates[1].banned.clear();
        candidates[0].run_passes(&module, &Settings::default());
        assert!(!candidates[0].steps().is_empty(), "the example no longer gains");
        assert!(!are_twins(&candidates[0], &candidates[1]), "they are not the same now");
        candidates[0].rewind(&module, &Settings::default(), 0);
        assert!(are_twins(&candidates[0], &candidates[1]));
    }
}
