//! What must be there before a value can be computed.

use rustc_hash::FxHashSet;

use crate::value::{Binary, Value, ValueId, Values};

/// One thing of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Need {
    Bound(Option<ValueId>, u64),
    NotZero(ValueId),
}

/// What must be there before a value can be computed, innermost first.
pub(crate) fn needs(values: &Values, value: ValueId, out: &mut Vec<Need>) {
    needs_of(values, value, &mut FxHashSet::default(), out);
}

/// Operands of several values are gone through once: those of chains of headers would be gone through millions of times.
fn needs_of(values: &Values, value: ValueId, seen: &mut FxHashSet<ValueId>, out: &mut Vec<Need>) {
    for operand in values.operands(value) {
        let is_simple = values.operands(operand).next().is_none();
        if is_simple || seen.insert(operand) {
            needs_of(values, operand, seen, out);
        }
    }
    let need = match values.get(value) {
        Value::Load { base, offset, size } => Need::Bound(base, u64::from(offset) + u64::from(size)),
        Value::Binary(Binary::Div | Binary::Mod, _, b) if values.as_constant(b) != Some(0) => {
            if values.as_constant(b).is_some() {
                return;
            }
            Need::NotZero(b)
        }
        // A division by the constant 0, which only simplification can bring about.
        Value::Binary(Binary::Div | Binary::Mod, _, b) => Need::NotZero(b),
        _ => return,
    };
    if !out.contains(&need) {
        out.push(need);
    }
}
