//! What calls leave of the frame and of registers.

use std::sync::Arc;

use bpf_program::{BlockId, Function, Link, ProgKind, Symbol};

use super::{at_end, function, maps, r};
use crate::{Env, Facts, Kind, State};

fn end(text: &str) -> State {
    at_end(&function(ProgKind::Skb, text), 0)
}

/// Names the callee of the bpf-to-bpf call at operation `i`.
fn with_callee(mut f: Function, i: usize) -> Function {
    f.block_mut(BlockId(0)).ops[i].link = Some(Link { slot: 0, symbol: Symbol::Func { name: Arc::from("callee") } });
    f
}

#[test]
fn a_call_clobbers_its_arguments_and_keeps_the_rest() {
    let s = end("r6 = 7\nr1 = 1\n*(u64 *)(r10 - 8) = 9\ncall 5\nexit");
    assert!((1..=5).all(|n| s.reg(r(n)).is_unknown()));
    assert_eq!(s.reg(r(0)).kind, Kind::Scalar);
    assert_eq!((s.reg(r(6)).as_const(), s.stack_bytes(-8, 8).as_const()), (Some(7), Some(9)));
}

#[test]
fn a_lookup_reads_its_key_and_leaves_it() {
    let s = end("*(u64 *)(r10 - 8) = 1\n*(u64 *)(r10 - 16) = 2\nr2 = r10\nr2 += -16\nr1 = map_fd[0] ll\ncall 1\nexit");
    assert_eq!((s.stack_bytes(-8, 8).as_const(), s.stack_bytes(-16, 8).as_const()), (Some(1), Some(2)));
    assert!(!s.frame_leaked());
}

#[test]
fn a_helper_spoils_the_buffer_it_writes() {
    let s = end("
        *(u64 *)(r10 - 8) = 1
        *(u64 *)(r10 - 16) = 2
        *(u64 *)(r10 - 24) = 3
        r2 = 0
        r3 = r10
        r3 += -20
        r4 = 8
        call 26
        exit");
    assert_eq!(s.stack_bytes(-8, 8).as_const(), Some(1));
    assert_eq!((s.stack_bytes(-24, 4).as_const(), s.stack_bytes(-12, 4).as_const()), (Some(3), Some(0)));
    assert_eq!((s.stack_bytes(-20, 4).as_const(), s.stack_bytes(-16, 4).as_const()), (None, None));
    assert!(!s.frame_leaked());
}

#[test]
fn a_helper_that_opens_an_object_on_the_stack_spoils_all_of_it() {
    let s = end("
        *(u64 *)(r10 - 8) = 1
        r1 = map_fd[0] ll
        r2 = 8
        r3 = 0
        r4 = r10
        r4 += -24
        call 198
        exit");
    assert!(s.stack_bytes(-8, 8).is_unknown());
}

#[test]
fn a_subprogram_that_gets_no_stack_pointer_spares_the_frame() {
    let f = with_callee(function(ProgKind::Skb, "*(u64 *)(r10 - 8) = 1\nr1 = 2\ncall pc+0\nexit"), 2);
    let s = at_end(&f, 0);
    assert_eq!(s.stack_bytes(-8, 8).as_const(), Some(1));
    assert!(!s.frame_leaked() && s.reg(r(0)).is_unknown());
}

#[test]
fn a_subprogram_that_gets_a_stack_pointer_may_do_anything_with_it() {
    let f = with_callee(function(ProgKind::Skb, "*(u64 *)(r10 - 8) = 1\nr1 = 0\nr2 = r10\ncall pc+0\nexit"), 3);
    let s = at_end(&f, 0);
    assert!(s.stack_bytes(-8, 8).is_unknown() && s.frame_leaked());
    // Unless it is known to read one argument only.
    let one_argument = |name: &str| (name == "callee").then_some(1);
    let facts = Facts::of(&f, &Env { maps: &maps(), callee_args: &one_argument });
    let s = facts.states(&f, BlockId(0)).pop().unwrap();
    assert_eq!(s.stack_bytes(-8, 8).as_const(), Some(1));
    assert!(!s.frame_leaked());
}

#[test]
fn a_kfunc_is_not_modelled() {
    let s = end("*(u64 *)(r10 - 8) = 1\nr1 = r10\nr1 += -8\ncall kfunc 77\nexit");
    assert!(s.stack_bytes(-8, 8).is_unknown() && s.frame_leaked());
}

#[test]
fn a_callback_with_a_stack_context_may_change_the_frame() {
    let s = end("*(u64 *)(r10 - 8) = 1\nr1 = 4\nr2 = func[0] ll\nr3 = r10\nr3 += -8\nr4 = 0\ncall 181\nexit");
    assert!(s.stack_bytes(-8, 8).is_unknown() && s.frame_leaked());
    let s = end("*(u64 *)(r10 - 8) = 1\nr1 = 4\nr2 = func[0] ll\nr3 = 0\nr4 = 0\ncall 181\nexit");
    assert_eq!(s.stack_bytes(-8, 8).as_const(), Some(1));
}

#[test]
fn a_tail_call_that_returns_gives_a_number() {
    let s = end("r2 = map_fd[0] ll\nr3 = 1\n*(u64 *)(r10 - 8) = 1\ncall 12\nexit");
    assert_eq!(s.reg(r(0)).kind, Kind::Scalar);
    assert_eq!(s.stack_bytes(-8, 8).as_const(), Some(1));
}
