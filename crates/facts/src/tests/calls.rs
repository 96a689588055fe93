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
fn a_helper_that_opens_a_dynptr_spoils_its_sixteen_bytes() {
    let s = end("
        *(u64 *)(r10 - 8) = 1
        *(u64 *)(r10 - 16) = 2
        *(u64 *)(r10 - 24) = 3
        *(u64 *)(r10 - 32) = 4
        r1 = map_fd[0] ll
        r2 = 8
        r3 = 0
        r4 = r10
        r4 += -24
        call 198
        exit");
    assert_eq!((s.stack_bytes(-8, 8).as_const(), s.stack_bytes(-32, 8).as_const()), (Some(1), Some(4)));
    assert!(s.stack_bytes(-16, 8).is_unknown() && s.stack_bytes(-24, 8).is_unknown());
    assert!(!s.frame_leaked());
}

/// The frame's address is spilled at -8 when the call is made.
fn with_spilled_address(call: &str) -> State {
    end(&format!("r6 = r1\nr2 = r10\nr2 += -64\n*(u64 *)(r10 - 8) = r2\n{call}\nexit"))
}

#[test]
fn a_helper_that_copies_memory_copies_spilled_frame_addresses() {
    let at_slot = "r1 = map_fd[0] ll";
    for (name, call) in [
        ("probe_read_kernel", "r1 = r10\nr1 += -32\nr2 = 8\nr3 = r10\nr3 += -8\ncall 113"),
        ("probe_read", "r1 = r10\nr1 += -32\nr2 = 8\nr3 = r10\nr3 += -8\ncall 4"),
        ("probe_read_kernel_str", "r1 = r10\nr1 += -32\nr2 = 8\nr3 = r10\nr3 += -8\ncall 115"),
        ("skb_store_bytes", "r1 = r6\nr2 = 0\nr3 = r10\nr3 += -8\nr4 = 8\nr5 = 0\ncall 9"),
        ("perf_event_output", "r1 = r6\nr2 = map_fd[0] ll\nr3 = 0\nr4 = r10\nr4 += -8\nr5 = 8\ncall 25"),
        ("ringbuf_output", "r1 = map_fd[0] ll\nr2 = r10\nr2 += -8\nr3 = 8\nr4 = 0\ncall 130"),
        ("map_update_elem, value", &format!("{at_slot}\nr2 = r10\nr2 += -64\nr3 = r10\nr3 += -8\nr4 = 0\ncall 2")),
        ("map_lookup_elem, key", &format!("{at_slot}\nr2 = r10\nr2 += -8\ncall 1")),
        ("csum_diff", "r1 = 0\nr2 = 0\nr3 = r10\nr3 += -8\nr4 = 8\nr5 = 0\ncall 28"),
        ("trace_printk, %s", "r1 = r10\nr1 += -32\nr2 = 4\nr3 = r10\nr3 += -8\ncall 6"),
        ("snprintf, data", "r1 = r10\nr1 += -32\nr2 = 8\nr3 = 0\nr4 = r10\nr4 += -8\nr5 = 8\ncall 165"),
        ("dynptr_write", "r1 = r10\nr1 += -48\nr2 = 0\nr3 = r10\nr3 += -8\nr4 = 8\nr5 = 0\ncall 202"),
    ] {
        assert!(with_spilled_address(call).frame_leaked(), "{name}");
        // Beside the address there is nothing to copy.
        let beside = call.replace("+= -8", "+= -24").replace("call 6", "call 5").replace("call 165", "call 5");
        assert!(!with_spilled_address(&beside).frame_leaked(), "{name}, beside the address");
    }
}

#[test]
fn part_of_a_spilled_frame_address_is_copied_too() {
    let s = with_spilled_address("r1 = map_fd[0] ll\nr2 = r10\nr2 += -12\nr3 = r10\nr3 += -40\nr4 = 0\ncall 2");
    assert!(s.frame_leaked(), "the key reaches to its upper half");
    let s = with_spilled_address("r3 = r10\nr3 += -8\nr1 = r10\nr1 += -32\nr2 = r6\nr2 &= 7\ncall 113");
    assert!(s.frame_leaked(), "how much is copied is not known");
}

#[test]
fn a_frame_address_passed_as_a_number_leaks() {
    for (name, call) in [
        ("skb_set_tstamp", "r2 = r10\nr2 += -16\nr3 = 1\ncall 192"),
        ("set_hash", "r2 = r10\ncall 48"),
        ("set_retval", "r1 = r10\ncall 187"),
        ("override_return", "r2 = r10\nr2 += -8\ncall 58"),
        ("map_update_elem, flags", "r1 = map_fd[0] ll\nr2 = r10\nr2 += -8\nr3 = r2\nr4 = r10\ncall 2"),
        ("trace_printk, a number", "r1 = r10\nr1 += -8\nr2 = 4\nr3 = r10\ncall 6"),
        ("tail_call, index", "r2 = map_fd[0] ll\nr3 = r10\ncall 12"),
    ] {
        assert!(end(&format!("{call}\nexit")).frame_leaked(), "{name}");
        let number = call.replace("= r10\nr2 += -16", "= 1").replace("r2 = r10\ncall 48", "r2 = 1\ncall 48");
        if number != call {
            assert!(!end(&format!("{number}\nexit")).frame_leaked(), "{name}, with a number");
        }
    }
    assert!(!end("r1 = map_fd[0] ll\nr2 = r10\nr2 += -8\nr3 = r2\nr4 = 0\ncall 2\nexit").frame_leaked());
}

#[test]
fn what_is_submitted_or_discarded_is_no_pointer_any_more() {
    let reserved = "r1 = map_fd[0] ll\nr2 = 8\nr3 = 0\ncall 131\nr6 = r0\n*(u64 *)(r10 - 8) = r0\nr1 = r0\nr2 = 0";
    for end_of_it in [132, 133] {
        let s = end(&format!("{reserved}\ncall {end_of_it}\nexit"));
        assert!(s.reg(r(6)).is_unknown() && s.stack_bytes(-8, 8).is_unknown(), "helper {end_of_it}");
        assert!(!s.frame_leaked());
    }
    let other =
        end(&format!("{reserved}\nr1 = map_fd[0] ll\nr2 = 8\nr3 = 0\ncall 131\nr1 = r0\nr2 = 0\ncall 132\nexit"));
    assert!(matches!(other.reg(r(6)).kind, Kind::Pointer { .. }), "another reservation ends");
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
    let facts = Facts::of(&f, &Env { maps: &maps(), callee_args: &one_argument, ..Env::empty() });
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
fn a_tail_call_may_read_a_frame_whose_address_is_known_elsewhere() {
    let row = |leak: &str| {
        let f = function(ProgKind::Skb, &format!("{leak}\nr2 = map_fd[0] ll\nr3 = 1\ncall 12\nexit"));
        let maps = maps();
        let env = Env { maps: &maps, callee_args: &super::no_arity, ..Env::empty() };
        let live = crate::Liveness::of(&f, &env, &Facts::of(&f, &env));
        live.entry(BlockId(0)).stack.len()
    };
    assert_eq!(row("r6 = r10\nr6 *= 2"), 512);
    assert_eq!(row("r6 = r10"), 0);
}

#[test]
fn a_tail_call_that_returns_gives_a_number() {
    let s = end("r2 = map_fd[0] ll\nr3 = 1\n*(u64 *)(r10 - 8) = 1\ncall 12\nexit");
    assert_eq!(s.reg(r(0)).kind, Kind::Scalar);
    assert_eq!(s.stack_bytes(-8, 8).as_const(), Some(1));
}
