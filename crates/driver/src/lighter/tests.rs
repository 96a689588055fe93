//! Proposals are worth something only if they are proven, so that is what is tested: of the kernel's counts tests in `cli` know.

use bpf_facts::{Analysis, Env};
use bpf_isa::{AluOp, Insn, Src};
use bpf_passes::Settings;
use bpf_program::{Function, ProgKind};
use bpf_prove::Derivation;
use bpf_testgen::listing::function;

use super::edit::Form;
use super::{arithmetic, early, ends, offsets, order};
use crate::global::Start;

fn classifier(text: &str) -> Function {
    function(ProgKind::from_section("tc"), text)
}

/// Whether the prover calls a form equal.
fn is_proven(f: &Function, form: &Form) -> bool {
    let (before, settings) = (Derivation::new(f.clone()), Settings::default());
    let (function, then) = (&form.function, form.then.as_ref());
    Start::of_form(&before, function, then, form.by, &Env::empty(), &settings).is_some()
}

fn analysis(f: &Function) -> Analysis {
    Analysis::of(f, &Env::empty())
}

#[test]
fn every_question_about_numbers_becomes_arithmetic() {
    let ways = ["r0 += 5", "r0 += 1", "r0 -= r3", "r0 = 9", "r0 <<= 3"];
    for cond in ["==", "!=", ">", ">=", "<", "<=", "s>", "s>=", "s<", "s<=", "&"] {
        for operand in ["100", "3", "w3"] {
            for way in ways {
                let text = format!(
                    "r2 = *(u32 *)(r1 + 0)\nr3 = *(u32 *)(r1 + 8)\nr0 = *(u32 *)(r1 + 4)\nif w2 {cond} {operand} goto +1\n\
                     {way}\nr0 &= 255\nexit\n"
                );
                let f = classifier(&text);
                let analysis = analysis(&f);
                let forms: Vec<Form> = arithmetic::forms(&f, &analysis).collect();
                assert!(forms.iter().any(|form| is_proven(&f, form)), "none of {} is proven:\n{text}", forms.len());
            }
        }
    }
}

#[test]
fn both_ways_may_compute_and_a_join_may_be_spread() {
    let both = "r2 = *(u32 *)(r1 + 0)\nr3 = *(u32 *)(r1 + 8)\nr0 = 1\nif w2 > 7 goto +2\nr0 = r3\ngoto +2\nr3 += 3\nr0 += r3\n\
                exit\n";
    let f = classifier(both);
    assert!(arithmetic::forms(&f, &analysis(&f)).any(|form| is_proven(&f, &form)));
    let three = "r2 = *(u32 *)(r1 + 0)\nr0 = 0\nr4 = 5\nif w2 > 9 goto +3\nif w2 > 5 goto +3\nr4 <<= 1\ngoto +0\nr0 = r4\n\
                 r0 += 1\nexit\n";
    let f = classifier(three);
    if let Some(form) = arithmetic::spread(&f) {
        assert!(is_proven(&f, &form));
    }
}

/// Verifiers fork their state where a mask of all ones or all zeros meets a constant.
#[test]
fn no_mask_is_made_of_a_sign() {
    let text = "r2 = *(u32 *)(r1 + 0)\nr0 = 0\nif w2 > 7 goto +1\nr0 += 12\nexit\n";
    let f = classifier(text);
    for form in arithmetic::forms(&f, &analysis(&f)) {
        for op in form.function.layout.iter().flat_map(|b| &form.function.block(*b).ops) {
            let is_mask = matches!(op.insn, Insn::Alu { op: AluOp::Arsh, src: Src::Imm(63), .. });
            assert!(!is_mask, "{}", form.function);
        }
    }
}

#[test]
fn a_constant_is_set_before_the_ways_part() {
    let text = "r2 = *(u32 *)(r1 + 0)\nif w2 > 7 goto +3\nif w2 == 3 goto +2\nr0 = 1\nexit\nr0 = 2\nexit\n";
    let f = classifier(text);
    let forms = early::forms(&f, &analysis(&f));
    assert!(!forms.is_empty() && forms.iter().all(|form| is_proven(&f, form)), "{}", forms.len());
}

#[test]
fn a_jump_to_an_end_becomes_that_end() {
    let text = "r2 = *(u32 *)(r1 + 0)\nr0 = 0\nif w2 > 7 goto +4\nr0 = 1\nif w2 == 3 goto +2\nr0 = 2\ngoto +0\nexit\n";
    let f = classifier(text);
    assert!(ends::forms(&f).iter().all(|form| is_proven(&f, form)));
    let forms = order::forms(&f);
    assert!(!forms.is_empty() && forms.iter().all(|form| is_proven(&f, form)));
    assert!(is_proven(&f, &order::reversed(&f)));
}

/// A pointer into the packet, at 14 or 18, where two ways meet. `context`: what is done with that before; `start`: and with the
/// packet's start after it was read through; `again`: what the context is used for at last.
fn varying(context: &str, start: &str, again: &str) -> String {
    format!(
        "{context}\nr6 = *(u32 *)(r1 + 76)\nr7 = *(u32 *)(r1 + 80)\nr8 = r6\nr8 += 14\nr0 = 0\nif r8 > r7 goto +8\n\
         r5 = *(u16 *)(r6 + 12)\n{start}\nif r5 != 129 goto +1\nr8 += 4\nr8 += 20\nif r8 > r7 goto +2\n{again}\n\
         r0 = *(u8 *)(r8 - 20)\nexit\n"
    )
}

#[test]
fn an_offset_into_the_packet_becomes_a_number_in_a_range() {
    // What is at hand where the ways meet, and instructions before the difference.
    for (context, start, again, loads) in [
        ("r0 = 0", "r0 = 0", "r1 = 0", 0),
        ("r0 = 0", "r6 = 0", "r1 = *(u32 *)(r1 + 0)", 1),
        ("r0 = 0", "r6 = 0", "r1 = 0", 1),
        ("*(u64 *)(r10 - 8) = r1", "r6 = 0\nr1 = 0", "r1 = *(u64 *)(r10 - 8)", 2),
    ] {
        let text = varying(context, start, again);
        let f = classifier(&if loads == 2 { text.replace("goto +8", "goto +9") } else { text });
        let analysis = analysis(&f);
        let forms: Vec<Form> = offsets::forms(&f, &analysis).collect();
        assert_eq!(forms.len(), 1, "{f}");
        let rewrite = forms[0].rewrite.clone().expect("it is one change");
        assert_eq!(rewrite.with.len(), loads + 3, "{f}");
        let mask = rewrite.with[loads + 1].insn;
        assert!(matches!(mask, Insn::Alu { op: AluOp::And, src: Src::Imm(30), .. }), "{mask}");
        let (env, settings, banned) = (Env::empty(), Settings::default(), Default::default());
        let mut session = bpf_prove::Session::new(Derivation::new(f.clone()), &env);
        session.analyze();
        assert!(bpf_passes::Engine::new(&settings, &banned).replace_with_dead(&mut session, rewrite), "{f}");
        assert!(bpf_prove::same_graph(session.function(), forms[0].last()));
    }
    // At one place alone.
    let one = classifier(&varying("r0 = 0", "r0 = 0", "r1 = 0").replace("r8 += 4", "r8 += 0"));
    assert_eq!(offsets::forms(&one, &analysis(&one)).count(), 0);
}
