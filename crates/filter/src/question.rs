//! Comparisons as questions about one value: whether it is in a set.

use crate::intervals::Intervals;
use crate::language::Relation;
use crate::value::{Binary, Value, ValueId, Values};

/// A test as a question about one value.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Question {
    pub(crate) value: ValueId,
    pub(crate) set: Intervals,
}

impl Question {
    /// The answer, if it is the same for all numbers that the value may be.
    pub(crate) fn answer(&self, possible: &Intervals) -> Option<bool> {
        if possible.is_disjoint(&self.set) {
            Some(false)
        } else if possible.is_subset(&self.set) {
            Some(true)
        } else {
            None
        }
    }
}

/// The numbers that stand in a relation to another.
fn related(relation: Relation, n: u32) -> Intervals {
    let below = || n.checked_sub(1).map_or(Intervals::none(), |m| Intervals::range(0, m));
    let above = || n.checked_add(1).map_or(Intervals::none(), |m| Intervals::range(m, u32::MAX));
    match relation {
        Relation::Equal => Intervals::one(n),
        Relation::NotEqual => Intervals::one(n).complement(),
        Relation::Greater => above(),
        Relation::GreaterEqual => Intervals::range(n, u32::MAX),
        Relation::Less => below(),
        Relation::LessEqual => Intervals::range(0, n),
    }
}

/// A comparison as a question about one value, as simple as that can be.
pub(crate) fn question(values: &mut Values, relation: Relation, a: ValueId, b: ValueId) -> Question {
    let question = match (values.as_constant(a), values.as_constant(b)) {
        (_, Some(n)) => Question { value: a, set: related(relation, n) },
        (Some(n), None) => {
            let flipped = match relation {
                Relation::Greater => Relation::Less,
                Relation::GreaterEqual => Relation::LessEqual,
                Relation::Less => Relation::Greater,
                Relation::LessEqual => Relation::GreaterEqual,
                same => same,
            };
            Question { value: b, set: related(flipped, n) }
        }
        (None, None) => {
            let (value, n) = match relation {
                Relation::Equal | Relation::NotEqual => (values.binary(Binary::Sub, a, b), 0),
                Relation::Greater => (values.intern(Value::IsGreater(a, b)), 1),
                Relation::LessEqual => (values.intern(Value::IsGreater(a, b)), 0),
                Relation::Less => (values.intern(Value::IsGreater(b, a)), 1),
                Relation::GreaterEqual => (values.intern(Value::IsGreater(b, a)), 0),
            };
            let one = Intervals::one(n);
            Question { value, set: if relation == Relation::NotEqual { one.complement() } else { one } }
        }
    };
    let mut question = question;
    while let Some(simpler) = simpler(values, &question) {
        question = simpler;
    }
    question
}

/// The same question about an operand of the value.
fn simpler(values: &Values, question: &Question) -> Option<Question> {
    let Value::Binary(op, a, b) = values.get(question.value) else { return None };
    if let (Some(n), Binary::Sub) = (values.as_constant(a), op) {
        // n - b is in the set if b is in the set's mirror.
        return Some(Question { value: b, set: question.set.mirrored(n) });
    }
    let n = values.as_constant(b)?;
    let greatest = values.greatest(a);
    let mapped = |f: &dyn Fn(u32, u32) -> Option<(u32, u32)>| {
        Intervals::of(question.set.as_slice().iter().filter_map(|(l, h)| f(*l, *h)).collect())
    };
    let set = match op {
        Binary::Add => question.set.shifted(n.wrapping_neg()),
        Binary::Sub => question.set.shifted(n),
        Binary::Xor => {
            let other = question.set.complement();
            match (question.set.single(), other.single()) {
                (Some(v), _) => Intervals::one(v ^ n),
                (_, Some(v)) => Intervals::one(v ^ n).complement(),
                _ => return None,
            }
        }
        Binary::And => {
            // A mask that leaves all bits from one on.
            let bits = u32::MAX.checked_shr(greatest.leading_zeros()).unwrap_or(0);
            let low = n.trailing_zeros();
            let kept = u32::MAX.checked_shl(low).unwrap_or(0);
            if n == 0 || n & bits != kept & bits || low == 0 {
                return None;
            }
            let ones = !kept;
            mapped(&|l, h| {
                let (l, h) = (l.checked_add(ones)? & kept, h & kept);
                (l <= h).then_some((l, h | ones))
            })
        }
        Binary::ShiftRight if n < 32 => {
            let most = u32::MAX >> n;
            mapped(&|l, h| (l <= most).then(|| (l << n, h.min(most) << n | ((1u32 << n) - 1))))
        }
        Binary::ShiftLeft if n < 32 && greatest.checked_mul(1 << n).is_some() => mapped(&|l, h| {
            let (l, h) = (l.div_ceil(1 << n), h >> n);
            (l <= h).then_some((l, h))
        }),
        Binary::Mul if n > 0 && greatest.checked_mul(n).is_some() => mapped(&|l, h| {
            let (l, h) = (l.div_ceil(n), h / n);
            (l <= h).then_some((l, h))
        }),
        _ => return None,
    };
    Some(Question { value: a, set })
}
