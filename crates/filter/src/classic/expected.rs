//! How much of a classic program is executed.

use super::code::{ALU, AND, Classic, JA, JEQ, JGE, JGT, JMP, RET};
use crate::program::LIKELY;

/// Up to this number what stands where Ethernet has a packet's type is a length. Most packets have a type.
const LONGEST_LENGTH: u32 = 1500;

/// The mask that leaves a header's version, and the two versions of the internet protocol: a packet is mostly of either.
const VERSION: u32 = 0xf0;
const VERSIONS: [u32; 2] = [0x40, 0x60];

/// Instructions that a packet costs if a comparison with one number mostly fails and other tests go either way. Of a loop one round
/// counts.
pub(crate) fn expected(instructions: &[Classic]) -> f64 {
    expected_if(instructions, EVEN)
}

/// Whether `fewer` of one program's instructions are executed than `of` the other's, however often ranges are met: at most this
/// share of them.
pub(crate) fn is_less(fewer: &[Classic], of: &[Classic], share: f64) -> bool {
    [0.2, EVEN, 0.8].into_iter().all(|in_range| expected_if(fewer, in_range) <= share * expected_if(of, in_range))
}

/// How often what nothing is known of is met.
const EVEN: f64 = 0.5;

/// The same, if so many numbers are at least what they are compared with, or larger.
fn expected_if(instructions: &[Classic], in_range: f64) -> f64 {
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
                    (JEQ, k) if VERSIONS.contains(&k) && asks_version(instructions, at) => EVEN,
                    (JEQ, _) => 0.2,
                    (JGT, LONGEST_LENGTH) => 0.9,
                    (JGE, k) if k == LONGEST_LENGTH + 1 => 0.9,
                    (JGT | JGE, _) => in_range,
                    _ => EVEN,
                };
                // The same question again has the same answer, and is executed all the same.
                let behind = |distance: u8, answer: bool| {
                    let to = at + 1 + usize::from(distance);
                    match instructions.get(to) {
                        Some(next) if (next.code, next.k) == (i.code, i.k) => {
                            let on = if answer { next.jt } else { next.jf };
                            1.0 + from.get(to + 1 + usize::from(on)).copied().unwrap_or_default()
                        }
                        _ => there(distance.into()),
                    }
                };
                likely * behind(i.jt, true) + (1.0 - likely) * behind(i.jf, false)
            }
            _ => there(0),
        };
        from[at] = 1.0 + behind;
    }
    from.first().copied().unwrap_or_default()
}

/// Whether the question at `at` is about the version of the internet protocol.
fn asks_version(instructions: &[Classic], at: usize) -> bool {
    let before = instructions[..at].iter().rev().find(|i| i.code & !0xf8 != JMP);
    before.is_some_and(|i| i.code == ALU | AND && i.k == VERSION)
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

    #[test]
    fn the_same_question_again_has_the_same_answer() {
        let load = Classic { code: LD, jt: 0, jf: 0, k: 1 };
        let test = |jt, jf| Classic { code: JMP | JEQ, jt, jf, k: 5 };
        // It is asked behind each answer, and leads to the end in one step or, which never is, over all that stands before it.
        let again = [load, test(0, 0), test(4, 4), load, load, load, load, RETURN];
        assert!((expected(&again) - 4.0).abs() < 1e-9);
        let apart = [load, test(0, 0), test(4, 0), load, load, load, load, RETURN];
        assert!((expected(&apart) - (0.2 * 4.0 + 0.8 * 8.0)).abs() < 1e-9);
    }
}
