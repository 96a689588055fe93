//! The interpreter's own behaviour, on small programs in assembly.

use std::collections::HashMap;
use std::sync::Arc;

use bpf_isa::{Reg, decode_all, encode_all, parse_listing};
use bpf_program::{Function, Link, ProgKind, Symbol, build_from_insns};
use bpf_semantics::interp::{ArgValue, Fault, Interp, KernelHost, MapSpec, Oracle, Outcome};

const FUEL: u64 = 10_000;
const HASH: u32 = 1;
const ARRAY: u32 = 2;
const LRU_HASH: u32 = 9;
const LPM_TRIE: u32 = 11;
const RINGBUF: u32 = 27;

fn function(kind: ProgKind, text: &str) -> Function {
    named("f", kind, text, &[])
}

fn named(name: &str, kind: ProgKind, text: &str, symbols: &[(usize, Symbol)]) -> Function {
    let insns = parse_listing(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let decoded = decode_all(&encode_all(&insns).unwrap()).unwrap();
    let links: HashMap<usize, Link> =
        symbols.iter().map(|(slot, s)| (*slot, Link { slot: *slot, symbol: s.clone() })).collect();
    build_from_insns(name, kind, &decoded, links).unwrap()
}

fn map(name: &str) -> Symbol {
    Symbol::Map { name: Arc::from(name), index: 0 }
}

fn func(name: &str) -> Symbol {
    Symbol::Func { name: Arc::from(name) }
}

/// r0 after these instructions, with r1 and r2 set.
fn eval(r1: u64, r2: u64, text: &str) -> u64 {
    let mut interp = Interp::new(Oracle::new(|_| 0));
    interp.cpu.set(Reg::R1, r1);
    interp.cpu.set(Reg::R2, r2);
    interp.run(&function(ProgKind::Subprogram, &format!("{text}\nexit")), FUEL).unwrap().r0
}

fn run(kind: ProgKind, packet: &[u8], text: &str) -> (Result<Outcome, Fault>, KernelHost) {
    run_with(KernelHost::new(kind, packet), &named("f", kind, text, &[]))
}

fn run_with(host: KernelHost, f: &Function) -> (Result<Outcome, Fault>, KernelHost) {
    let mut interp = host.start();
    (interp.run(f, FUEL), interp.host)
}

fn with_map(map_type: u32, key_size: u32, value_size: u32, max_entries: u32) -> KernelHost {
    let mut host = KernelHost::new(ProgKind::Xdp, &[0; 64]);
    host.add_map(MapSpec { name: "m".into(), map_type, key_size, value_size, max_entries });
    host
}

const MIN32: u64 = 0x8000_0000;
const MIN64: u64 = 1 << 63;

#[test]
fn division_by_zero_gives_zero() {
    assert_eq!(eval(7, 0, "r0 = r1\nr0 /= r2"), 0);
    assert_eq!(eval(7, 0, "r0 = r1\nr0 s/= r2"), 0);
    assert_eq!(eval(7, 1 << 32, "r0 = r1\nw0 /= w2"), 0);
}

#[test]
fn remainder_by_zero_gives_the_dividend() {
    assert_eq!(eval(MIN64 | 7, 0, "r0 = r1\nr0 %= r2"), MIN64 | 7);
    assert_eq!(eval(MIN64 | 7, 0, "r0 = r1\nr0 s%= r2"), MIN64 | 7);
}

#[test]
fn remainder_by_zero_of_32_bits_zero_extends_the_dividend() {
    assert_eq!(eval(0xffff_ffff_8000_0007, 0, "r0 = r1\nw0 %= w2"), 0x8000_0007);
    assert_eq!(eval(0xffff_ffff_8000_0007, 0, "r0 = r1\nw0 s%= w2"), 0x8000_0007);
}

#[test]
fn smallest_number_divided_by_minus_one_wraps() {
    assert_eq!(eval(MIN64, u64::MAX, "r0 = r1\nr0 s/= r2"), MIN64);
    assert_eq!(eval(MIN64, u64::MAX, "r0 = r1\nr0 s%= r2"), 0);
    assert_eq!(eval(MIN32, u64::MAX, "r0 = r1\nw0 s/= w2"), MIN32);
    assert_eq!(eval(MIN32, u64::MAX, "r0 = r1\nw0 s%= w2"), 0);
}

#[test]
fn signed_remainder_has_the_sign_of_the_dividend() {
    assert_eq!(eval(-7i64 as u64, 3, "r0 = r1\nr0 s%= r2") as i64, -1);
    assert_eq!(eval(7, -3i64 as u64, "r0 = r1\nr0 s%= r2"), 1);
}

#[test]
fn shifts_use_the_low_bits_of_the_amount() {
    assert_eq!(eval(1, 65, "r0 = r1\nr0 <<= r2"), 2);
    assert_eq!(eval(1, 33, "r0 = r1\nw0 <<= w2"), 2);
    assert_eq!(eval(MIN64, 127, "r0 = r1\nr0 s>>= r2"), u64::MAX);
    assert_eq!(eval(MIN32, 63, "r0 = r1\nw0 s>>= w2"), 0xffff_ffff);
}

#[test]
fn results_of_32_bits_zero_extend() {
    assert_eq!(eval(u64::MAX, 0, "w0 = w1"), 0xffff_ffff);
    assert_eq!(eval(u64::MAX, 1, "r0 = r1\nw0 += w2"), 0);
    assert_eq!(eval(1, 0, "r0 = r1\nw0 = -w0"), 0xffff_ffff);
    assert_eq!(eval(0xffff_ffff_1122_3344, 0, "r0 = r1\nr0 = be32 r0"), 0x4433_2211);
    assert_eq!(eval(0xffff_ffff_1122_3344, 0, "r0 = r1\nr0 = le16 r0"), 0x3344);
    assert_eq!(eval(0x80, 0, "w0 = (s8)w1"), 0xffff_ff80);
}

#[test]
fn immediates_sign_extend() {
    assert_eq!(eval(0, 0, "r0 = -1"), u64::MAX);
    assert_eq!(eval(0, 0, "w0 = -1"), 0xffff_ffff);
    assert_eq!(eval(u64::MAX, 0, "r0 = 1\nif r1 == -1 goto +1\nr0 = 0"), 1);
}

#[test]
fn stored_immediates_sign_extend_to_eight_bytes() {
    assert_eq!(eval(0, 0, "*(u64 *)(r10 - 8) = -2\nr0 = *(u64 *)(r10 - 8)"), -2i64 as u64);
}

#[test]
fn loads_zero_or_sign_extend() {
    let store = "*(u64 *)(r10 - 8) = r1\n";
    assert_eq!(eval(0x80, 0, &format!("{store}r0 = *(u8 *)(r10 - 8)")), 0x80);
    assert_eq!(eval(0x80, 0, &format!("{store}r0 = *(s8 *)(r10 - 8)")), -128i64 as u64);
}

#[test]
fn compare_and_exchange_of_32_bits_zero_extends_r0() {
    let text = "*(u64 *)(r10 - 8) = r1\nr0 = r2\nr3 = 9\nw0 = cmpxchg32_32(r10 - 8, w0, w3)";
    assert_eq!(eval(5, 0xffff_ffff_0000_0005, text), 5);
    assert_eq!(eval(6, u64::MAX, text), 6);
    let kept = "*(u64 *)(r10 - 8) = r1\nr0 = r2\nr3 = 9\nw0 = cmpxchg32_32(r10 - 8, w0, w3)\nr0 = *(u64 *)(r10 - 8)";
    assert_eq!(eval(0xabcd_0000_0005, 5, kept), 0xabcd_0000_0009);
    assert_eq!(eval(0xabcd_0000_0006, 5, kept), 0xabcd_0000_0006);
}

#[test]
fn fetching_atomics_of_32_bits_zero_extend_the_old_value() {
    let text = "*(u64 *)(r10 - 8) = r1\nw2 = atomic_fetch_add((u32 *)(r10 - 8), w2)\nr0 = r2";
    assert_eq!(eval(u64::MAX, u64::MAX, text), 0xffff_ffff);
}

#[test]
fn uninitialised_registers_are_faults() {
    let f = function(ProgKind::Xdp, "r0 = r3\nexit");
    assert_eq!(Interp::new(Oracle::new(|_| 0)).run(&f, FUEL), Err(Fault::Uninitialised(Reg::R3)));
    let f = function(ProgKind::Xdp, "r1 = 0\nexit");
    assert_eq!(Interp::new(Oracle::new(|_| 0)).run(&f, FUEL), Err(Fault::Uninitialised(Reg::R0)));
}

#[test]
fn calls_take_away_argument_registers() {
    let (r, _) = run(ProgKind::Xdp, &[0; 64], "r2 = 1\ncall 8\nr0 = r2\nexit");
    assert_eq!(r, Err(Fault::Uninitialised(Reg::R2)));
}

#[test]
fn accesses_beside_the_stack_are_faults() {
    for text in ["*(u64 *)(r10 - 4) = 0", "r0 = *(u8 *)(r10 - 513)", "r0 = *(u8 *)(r10 + 0)"] {
        let (r, _) = run(ProgKind::Xdp, &[0; 64], &format!("{text}\nr0 = 0\nexit"));
        assert!(matches!(r, Err(Fault::Access { .. })), "{text}: {r:?}");
    }
}

#[test]
fn endless_programs_run_out_of_fuel() {
    let (r, _) = run(ProgKind::Xdp, &[0; 64], "r0 = 0\ngoto -1\nexit");
    assert_eq!(r, Err(Fault::OutOfFuel));
}

#[test]
fn may_goto_jumps_once_its_budget_is_spent() {
    let f = function(ProgKind::Xdp, "r0 = 0\nmay_goto +2\nr0 += 1\ngoto -3\nexit");
    let mut interp = KernelHost::new(ProgKind::Xdp, &[0; 64]).start();
    interp.may_goto_budget = 5;
    assert_eq!(interp.run(&f, FUEL).unwrap().r0, 5);
}

const PACKET_IN_R2: &str = "r2 = *(u32 *)(r1 + 0)\n";

#[test]
fn xdp_context_fields_are_whole_pointers() {
    let text = format!("{PACKET_IN_R2}r3 = *(u32 *)(r1 + 4)\nr0 = r3\nr0 -= r2\nr4 = *(u8 *)(r2 + 2)\nr0 += r4\nexit");
    assert_eq!(run(ProgKind::Xdp, &[1, 2, 100], &text).0.unwrap().r0, 103);
}

#[test]
fn packet_bounds_are_exact() {
    let (r, _) = run(ProgKind::Xdp, &[0; 14], &format!("{PACKET_IN_R2}r0 = *(u16 *)(r2 + 13)\nexit"));
    assert!(matches!(r, Err(Fault::Access { write: false, size: 2, .. })));
}

#[test]
fn adjust_head_moves_the_packet_start() {
    let text = "r6 = r1\nr2 = -4\ncall 44\nr1 = r6\nr2 = *(u32 *)(r1 + 0)\n*(u8 *)(r2 + 0) = 9\nexit";
    let (r, host) = run(ProgKind::Xdp, &[1; 20], text);
    assert_eq!((r.unwrap().r0, host.packet().len(), host.packet()[0], host.packet()[4]), (0, 24, 9, 1));
    let (r, host) = run(ProgKind::Xdp, &[1; 20], "r2 = 7\ncall 44\nexit");
    assert_eq!((r.unwrap().r0 as i64, host.packet().len()), (-22, 20));
}

#[test]
fn failing_legacy_load_ends_the_program_with_zero() {
    let text = "r6 = r1\nr0 = *(u16 *)skb[20]\nr0 = 1\nexit";
    assert_eq!(run(ProgKind::Skb, &[7; 20], text).0.unwrap().r0, 0);
    let text = "r6 = r1\nr0 = *(u16 *)skb[12]\nexit";
    let packet: Vec<u8> = (0..20).collect();
    assert_eq!(run(ProgKind::Skb, &packet, text).0.unwrap().r0, 0x0c0d);
}

/// Looks key 3 up and adds 1 to its 32-bit value; returns 7 if there is none. The map load is slot 3.
const COUNT: &str = "*(u32 *)(r10 - 4) = 3\nr2 = r10\nr2 += -4\nr1 = 0 ll\ncall 1\nif r0 == 0 goto +4\n\
                     r1 = *(u32 *)(r0 + 0)\nr1 += 1\n*(u32 *)(r0 + 0) = r1\ngoto +2\nr0 = 7\nexit\nr0 = 0\nexit";

fn count(host: KernelHost) -> (u64, KernelHost) {
    let (r, host) = run_with(host, &named("f", ProgKind::Xdp, COUNT, &[(3, map("m"))]));
    (r.unwrap().r0, host)
}

#[test]
fn array_elements_exist_from_the_start() {
    let (r0, mut host) = count(with_map(ARRAY, 4, 4, 4));
    assert_eq!((r0, host.map_lookup(0, &[3, 0, 0, 0])), (0, Some(vec![1, 0, 0, 0])));
    assert_eq!(count(with_map(ARRAY, 4, 4, 3)).0, 7);
}

#[test]
fn hash_elements_exist_once_they_are_added() {
    let mut host = with_map(HASH, 4, 4, 4);
    host.map_update(0, &[3, 0, 0, 0], &[41, 0, 0, 0]).unwrap();
    let (r0, host) = count(host);
    assert_eq!((r0, host.map_entries(0)), (0, vec![(vec![3, 0, 0, 0], vec![42, 0, 0, 0])]));
    assert_eq!(count(with_map(HASH, 4, 4, 4)).0, 7);
}

#[test]
fn full_hash_refuses_and_full_lru_evicts() {
    for (map_type, result) in [(HASH, Err(-7)), (LRU_HASH, Ok(()))] {
        let mut host = with_map(map_type, 1, 1, 1);
        host.map_update(0, &[1], &[1]).unwrap();
        assert_eq!(host.map_update(0, &[2], &[2]), result);
        assert_eq!(host.map_entries(0).len(), 1);
    }
}

#[test]
fn trie_finds_the_longest_prefix() {
    let mut host = with_map(LPM_TRIE, 8, 1, 4);
    host.map_update(0, &[8, 0, 0, 0, 10, 99, 99, 99], &[1]).unwrap();
    host.map_update(0, &[16, 0, 0, 0, 10, 1, 0, 0], &[2]).unwrap();
    let mut find = |a: [u8; 4]| host.map_lookup(0, &[&[32, 0, 0, 0], &a[..]].concat());
    assert_eq!(find([10, 1, 2, 3]), Some(vec![2]));
    assert_eq!(find([10, 2, 2, 3]), Some(vec![1]));
    assert_eq!(find([11, 2, 2, 3]), None);
}

#[test]
fn map_calls_are_recorded_with_the_key_they_read() {
    let f = named("f", ProgKind::Xdp, COUNT, &[(3, map("m"))]);
    let mut interp = with_map(ARRAY, 4, 4, 4).start();
    interp.run(&f, FUEL).unwrap();
    let [event] = &interp.cpu.trace[..] else { panic!("{:?}", interp.cpu.trace) };
    assert_eq!((&*event.call, event.args[1]), ("map_lookup_elem", ArgValue::StackBuffer));
    assert_eq!(event.memory, [(2, vec![3, 0, 0, 0])]);
}

#[test]
fn subprograms_have_their_own_frame_and_keep_callee_saved_registers() {
    let main = "*(u64 *)(r10 - 8) = 1\nr6 = 2\nr1 = r10\nr1 += -8\ncall -1\nr0 += r6\nr1 = *(u64 *)(r10 - 8)\n\
                r0 += r1\nexit";
    let sub = "*(u64 *)(r10 - 8) = 10\nr6 = 20\n*(u64 *)(r1 + 0) = 100\nr0 = 1000\nexit";
    let mut interp = KernelHost::new(ProgKind::Xdp, &[0; 64]).start();
    interp.add_function(named("sub", ProgKind::Subprogram, sub, &[]));
    let f = named("f", ProgKind::Xdp, main, &[(4, func("sub"))]);
    assert_eq!(interp.run(&f, FUEL).unwrap().r0, 1102);
}

#[test]
fn recursion_stops_at_the_kernels_depth() {
    let mut interp = KernelHost::new(ProgKind::Xdp, &[0; 64]).start();
    let f = named("sub", ProgKind::Subprogram, "call -1\nexit", &[(0, func("sub"))]);
    interp.add_function(f.clone());
    assert_eq!(interp.run(&f, FUEL), Err(Fault::CallDepth));
}

#[test]
fn loop_helper_runs_its_callback_until_it_says_stop() {
    let main = "*(u64 *)(r10 - 8) = 0\nr1 = 100\nr2 = 0 ll\nr3 = r10\nr3 += -8\nr4 = 0\ncall 181\n\
                r1 = *(u64 *)(r10 - 8)\nr1 *= 1000\nr0 += r1\nexit";
    // Adds the index to the context; stops at index 4.
    let body = "r3 = *(u64 *)(r2 + 0)\nr3 += r1\n*(u64 *)(r2 + 0) = r3\nr0 = 0\nif r1 != 4 goto +1\nr0 = 1\nexit";
    let mut interp = KernelHost::new(ProgKind::Xdp, &[0; 64]).start();
    interp.add_function(named("body", ProgKind::Subprogram, body, &[]));
    let f = named("f", ProgKind::Xdp, main, &[(2, func("body"))]);
    assert_eq!(interp.run(&f, FUEL).unwrap().r0, 10_005);
}

#[test]
fn ring_buffer_records_are_outputs_once_submitted() {
    let text = "r1 = 0 ll\nr2 = 8\nr3 = 0\ncall 131\nif r0 == 0 goto +4\n*(u64 *)(r0 + 0) = 5\nr1 = r0\nr2 = 0\n\
                call 132\nr0 = 0\nexit";
    let f = named("f", ProgKind::Xdp, text, &[(0, map("m"))]);
    let (r, host) = run_with(with_map(RINGBUF, 0, 0, 4096), &f);
    assert_eq!(r.unwrap().r0, 0);
    assert_eq!(host.outputs.len(), 1);
    assert_eq!(host.outputs[0].bytes, 5u64.to_le_bytes());
}

#[test]
fn global_data_is_memory_and_rodata_is_read_only() {
    let data = |section: &str| Symbol::Data { section: Arc::from(section), offset: 2 };
    let text = "r1 = 0 ll\n*(u8 *)(r1 + 0) = 9\nr0 = 0\nexit";
    let mut host = KernelHost::new(ProgKind::Xdp, &[0; 64]);
    host.add_section(".data", &[1, 2, 3], true);
    host.add_section(".rodata", &[1, 2, 3], false);
    let (r, host) = run_with(host, &named("f", ProgKind::Xdp, text, &[(0, data(".data"))]));
    assert!(r.is_ok());
    assert_eq!(host.section(".data").unwrap(), [1, 2, 9]);
    let (r, _) = run_with(host, &named("f", ProgKind::Xdp, text, &[(0, data(".rodata"))]));
    assert!(matches!(r, Err(Fault::Access { write: true, .. })));
}

#[test]
fn helpers_without_a_model_are_faults() {
    let (r, _) = run(ProgKind::Xdp, &[0; 64], "r2 = 0\nr3 = 0\nr4 = 0\ncall 69\nexit");
    assert!(matches!(r, Err(Fault::Unmodelled(what)) if what.contains("fib_lookup")));
}

#[test]
fn oracle_answers_for_memory_and_calls() {
    let f = function(
        ProgKind::Other,
        "r6 = r1\nr0 = *(u16 *)(r1 + 0)\n*(u8 *)(r1 + 1) = 5\ncall 7\n\
                                       r1 = *(u16 *)(r6 + 0)\nr0 += r1\nexit",
    );
    let host = Oracle::new(|a| a as u8).on_call(|_, cpu, memory| {
        memory.set_byte(0x1000, 1);
        cpu.set(Reg::R0, 0x10000);
        Ok(())
    });
    let mut interp = Interp::new(host);
    interp.cpu.set(Reg::R1, 0x1000);
    assert_eq!(interp.run(&f, FUEL).unwrap().r0, 0x10501);
    assert_eq!(interp.host.memory.written(), [(0x1000, 1), (0x1001, 5)]);
    assert_eq!(interp.cpu.trace.len(), 1);
}
