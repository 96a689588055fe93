//! How much of a classic program is executed.

use super::code::{Classic, JA, JEQ, JGE, JGT, JMP, RET};
use crate::program::LIKELY;

/// Up to this number what stands where Ethernet has a packet's type is a length. Most packets have a type.
const LONGEST_LENGTH: u32 = 1500;

/// Instructions that a packet costs if a comparison with one number mostly fails and other tests go either way. Of a loop one round
/// counts.
pub(crate) fn expected(instructions: &[Classic]) -> f64 {
    // What comes behind each instruction, the last one first.
    let mut from: Vec<f64> = vec![0.0; instructions.len()];
    for (at, i) in instructions.iter().enumerate().rev() {
        let there = |distance: u32| {
            let to = at as i64 + 1 + i64::from(distance.cast_signed());
            if to > at as i64 { from.get(to as usize).copied().unwrap_or_default() } else { 0.0 }
        };
        const CLASS: u16 = 7;
        let behind = match i.code & CLASS {
            RET => 0.0,
            JMP if i.code == JMP | JA => there(i.k),
            JMP => {
                let likely = match (i.code & !JMP, i.k) {
                    (JEQ, LIKELY) => 0.8,
                    (JEQ, _) => 0.2,
                    (JGT, LONGEST_LENGTH) => 0.9,
                    (JGE, k) if k == LONGEST_LENGTH + 1 => 0.9,
                    _ => 0.5,
                };
                likely * there(i.jt.into()) + (1.0 - likely) * there(i.jf.into())
            }
            _ => there(0),
        };
        from[at] = 1.0 + behind;
    }
    from.first().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classic::code::{LD, X};

    const RETURN: Classic = Classic { code: RET, jt: 0, jf: 0, k: 0 };

    #[test]
    fn each_way_counts_as_often_as_it_is_taken() {
        let load = Classic { code: LD, jt: 0, jf: 0, k: 1 };
        let test = |code, k| Classic { code: JMP | code, jt: 1, jf: 0, k };
        // Where the test holds, one instruction less is executed.
        let program = |branch| [load, branch, load, RETURN];
        for (code, k, likely) in [(JEQ, 5, 0.2), (JEQ, LIKELY, 0.8), (JEQ | X, LIKELY, 0.5), (JGT, LONGEST_LENGTH, 0.9)]
        {
            let (is, wanted) = (expected(&program(test(code, k))), 2.0 + likely + (1.0 - likely) * 2.0);
            assert!((is - wanted).abs() < 1e-9, "{code:#x} {k}: {is}, not {wanted}");
        }
        let back = Classic { code: JMP | JA, jt: 0, jf: 0, k: -2i32 as u32 };
        assert_eq!(expected(&[load, back, RETURN]), 2.0);
    }
}
