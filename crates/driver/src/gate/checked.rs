//! The programs that no kernel judges: the gate asks `bpf_check` about them.
//!
//! They are those of which the kernel says nothing about the code: all, where it may not be asked; those of a type that it
//! does not have, of objects or with maps that it cannot make, in sections that tell no type; those that libbpf does not
//! know. The yardstick is the same as with the kernel: what `bpf_check` takes of the original it must take of the
//! result, and where it could not follow the original, it must not find fault with the result. An original that it refuses
//! says nothing, and what becomes of such a program is not judged by anybody; the report says so.
//!
//! A section that tells no type is judged as each of the usual types as which the original is not refused. A program may
//! well be safe as several, and its loader alone knows which it is.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use bpf_check::{Program, Report, SafetyVerdict};
use bpf_kernel::ProgramType;
use bpf_object::{FuncId, Object};

/// Program and attach type.
type Type = (u32, u32);

/// A program that the kernel does not judge.
pub(super) struct Checked {
    /// Its function.
    pub(super) id: FuncId,
    pub(super) original: Original,
    /// How long it will take to judge a result.
    pub(super) takes: Duration,
}

/// What was said to the original.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Original {
    /// It is not refused as a program of these types, and what was said to each of them.
    Taken(Vec<(Type, Word)>),
    /// It is refused, and why.
    Refused(String),
    /// There was no time to find out.
    OutOfTime,
}

/// What `bpf_check` says to what it does not refuse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Word {
    /// It is safe.
    Safe,
    /// It cannot be followed to its end, and why.
    CannotTell(String),
}

impl Original {
    /// Whether it is known to be safe, as whatever type; why not, if it could not be followed.
    pub(super) fn unfollowed(&self) -> Option<&str> {
        let Original::Taken(types) = self else { return None };
        let safe = types.iter().any(|(_, word)| *word == Word::Safe);
        let why = types.iter().find_map(|(_, word)| match word {
            Word::CannotTell(why) => Some(why.as_str()),
            Word::Safe => None,
        });
        why.filter(|_| !safe)
    }
}

/// Of the time for originals, each may take this part of an equal share in a turn; what remains is for the last turn.
const TURNS: [u32; 2] = [8, 4];

/// Judges these originals, each as the type that the user says or its section. Those that take long come again when all
/// have had a turn, so that they keep no other from being judged; in the last turn they may take what time there is.
pub(super) fn originals(
    object: &Object,
    ids: &[usize],
    forced: Option<&str>,
    deadline: Option<Instant>,
) -> Vec<Checked> {
    let waiting = |&id: &usize| Checked { id: FuncId(id), original: Original::OutOfTime, takes: Duration::ZERO };
    let mut all: Vec<Checked> = ids.iter().map(waiting).collect();
    let time = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let count = u32::try_from(ids.len()).unwrap_or(u32::MAX);
    let shares = TURNS.map(|part| time.map(|time| time / count.saturating_mul(part).max(1)));
    for share in shares.into_iter().chain([time]) {
        for checked in all.iter_mut().filter(|c| c.original == Original::OutOfTime) {
            let until = share.and_then(|share| Instant::now().checked_add(share)).min(deadline);
            *checked = Checked::new(object, checked.id, forced, until);
        }
    }
    all
}

impl Checked {
    /// Judges an original.
    fn new(object: &Object, id: FuncId, forced: Option<&str>, deadline: Option<Instant>) -> Checked {
        let section = object.functions().get(id.0).map_or("", |f| f.section.as_str());
        let types = match forced.map(ProgramType::named) {
            Some(Ok((kind, attach))) => vec![(kind.0, attach)],
            // The user is told by others.
            Some(Err(_)) => Vec::new(),
            None => ProgramType::usual(section),
        };
        let (mut taken, mut reason, mut takes) = (Vec::new(), None, Duration::ZERO);
        for kind in types {
            let started = Instant::now();
            match judged(object, id, kind, deadline) {
                None => return Checked { id, original: Original::OutOfTime, takes: Duration::ZERO },
                Some(Ok(word)) => {
                    taken.push((kind, word));
                    takes += started.elapsed();
                }
                Some(Err(why)) => {
                    reason.get_or_insert(why);
                }
            }
        }
        let original = match taken.is_empty() {
            true => Original::Refused(reason.unwrap_or_else(|| "it has no type".to_owned())),
            false => Original::Taken(taken),
        };
        Checked { id, original, takes }
    }

    /// Whether a form of the program is taken as the original is, or why not; `None` if there is no time to find
    /// out. `before` is the object as it came, `object` that with the form.
    pub(super) fn judge(
        &self,
        before: &Object,
        object: &Object,
        deadline: Option<Instant>,
    ) -> Option<Result<(), String>> {
        if !matches!(self.original, Original::Taken(_)) {
            return Some(Ok(()));
        }
        let same = |id: FuncId| {
            let [old, new] = [before, object].map(|o| o.functions().get(id.0).map(|f| (&f.name, &f.section)));
            old == new
        };
        if !same(self.id) {
            return Some(Err("it is no longer there".to_owned()));
        }
        self.judge_as(self.id, object, deadline)
    }

    /// The same of the form that has this number in the object.
    pub(super) fn judge_as(
        &self,
        id: FuncId,
        object: &Object,
        deadline: Option<Instant>,
    ) -> Option<Result<(), String>> {
        let Original::Taken(types) = &self.original else { return Some(Ok(())) };
        for (kind, before) in types {
            match judged(object, id, *kind, deadline)? {
                Err(why) => return Some(Err(why)),
                Ok(Word::CannotTell(why)) if *before == Word::Safe => return Some(Err(format!("cannot tell: {why}"))),
                Ok(_) => {}
            }
        }
        Some(Ok(()))
    }
}

/// The word on a program, or why it is refused; `None` if there is no time to find out.
fn judged(
    object: &Object,
    id: FuncId,
    (kind, attach): Type,
    deadline: Option<Instant>,
) -> Option<Result<Word, String>> {
    let report = || Report::within(&Program::link(object, id, kind, attach), deadline);
    // It judges; nothing else depends on it.
    let Ok(report) = catch_unwind(AssertUnwindSafe(report)) else {
        return Some(Err("an internal error, please report it".to_owned()));
    };
    let report = report?;
    let why = report.problem.map(|p| p.what).unwrap_or_default();
    Some(match report.verdict {
        SafetyVerdict::Accepted => Ok(Word::Safe),
        SafetyVerdict::CannotTell => Ok(Word::CannotTell(why)),
        SafetyVerdict::Violation => Err(why),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT: &[u8] = include_bytes!("../../tests/fixtures/entries.o");
    /// `BPF_PROG_TYPE_CGROUP_SKB`, of which the kernel wants 0 or 1.
    const CGROUP_SKB: Type = (8, 0);

    fn object(bytes: &[u8]) -> Object {
        Object::parse(bytes.to_vec()).expect("an object")
    }

    /// The object with another number in the first `r0 = 0`.
    fn returning(number: u8) -> Object {
        let mut bytes = OBJECT.to_vec();
        let at = bytes.windows(8).position(|w| w == [0xb7, 0, 0, 0, 0, 0, 0, 0]).expect("it is there");
        bytes[at + 4] = number;
        object(&bytes)
    }

    #[test]
    fn of_what_could_not_be_followed_only_faults_count() {
        let before = object(OBJECT);
        let judged = |word: Word, after: &Object| {
            let checked =
                Checked { id: FuncId(0), original: Original::Taken(vec![(CGROUP_SKB, word)]), takes: Duration::ZERO };
            checked.judge(&before, after, None).expect("there is time")
        };
        for word in [Word::Safe, Word::CannotTell("a call".into())] {
            assert_eq!(judged(word.clone(), &returning(1)), Ok(()));
            assert!(judged(word, &returning(2)).is_err_and(|why| why.contains("At program exit")));
        }
    }

    #[test]
    fn a_type_for_which_the_original_is_refused_does_not_count() {
        let socket = Some("socket");
        let [safe, refused] = [0, 2].map(|n| Checked::new(&returning(n), FuncId(0), None, None).original);
        assert_eq!(safe, Original::Taken(vec![(CGROUP_SKB, Word::Safe)]));
        assert!(matches!(refused, Original::Refused(why) if why.contains("At program exit")));
        // A socket filter may return anything.
        let any = Checked::new(&returning(2), FuncId(0), socket, None).original;
        assert_eq!(any, Original::Taken(vec![((1, 0), Word::Safe)]));
    }
}
