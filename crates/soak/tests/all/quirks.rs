//! Where this kernel does not do what the instruction set says, and the generator therefore keeps away.

use bpf_isa::parse_listing;
use bpf_kernel::testing::permitted;
use bpf_kernel::{ProgramType, RawOptions, RawProgram};

/// r0 >> 32 after an exchange that succeeds on one of two ways to the same place; `after` follows the exchange.
fn upper_half(after: &str) -> u32 {
    let text = format!(
        "r6 = *(u32 *)(r1 + 0x8)\n*(u64 *)(r10 - 0x8) = 0x0\nr0 = 0x1122334400000000 ll\nr3 = 0x5\n\
         if r6 == 0x0 goto +0x1\ngoto +0x{:x}\nw0 = cmpxchg32_32(r10 - 0x8, w0, w3)\n{after}r0 >>= 0x20\nexit\n",
        1 + after.lines().count()
    );
    let bytes = bpf_isa::encode_all(&parse_listing(&text).expect("a listing")).expect("encodable");
    // Remember the state at every join, as the verifier does by itself in longer programs.
    const TEST_STATE_FREQ: u32 = 1 << 3;
    let options = RawOptions { flags: TEST_STATE_FREQ, ..RawOptions::default() };
    let program = RawProgram::load(ProgramType::SCHED_CLS, &bytes, &options).expect("accepted");
    program.test_run(&[0; 64], None, 1).expect("it runs").retval
}

/// RFC 9669: a 32-bit `cmpxchg` zero-extends r0. On x86 a successful one leaves rax alone, so the verifier has to add
/// the extension; Linux 6.18 does not where it sees the reader of the upper half on another path only. An explicit
/// `w0 = w0` always works, and that is what generated programs have.
#[test]
fn an_explicit_zero_extension_after_cmpxchg_works() {
    if !permitted() {
        return;
    }
    assert_eq!(upper_half("w0 = w0\n"), 0);
    match upper_half("") {
        0 => println!("this kernel extends by itself"),
        v => println!("this kernel leaves {v:#x} in the upper half without it"),
    }
}

/// A number in the frame is 0 or 8, depending on the way; an atomic fetches it, and a jump tests it. Linux 6.18 forgets that
/// the slot counts (`backtrack_insn` in kernel/bpf/verifier.c looks for the fetched register before the atomic, not for
/// the slot), takes the way with 0 for the one with 8, and has the jump decided: 1 comes out where the number was 0.
/// Generated programs fetch from map values only.
#[test]
fn what_an_atomic_fetches_from_the_frame_is_right_without_a_jump() {
    if !permitted() {
        return;
    }
    let run = |end: &str| {
        let text = format!(
            "r6 = *(u32 *)(r1 + 0)\nr6 += -1000\nr7 = 0\nif r6 s< 0x25 goto +2\nr7 += 1\nif r7 < 0x8 goto -3\n\
             *(u64 *)(r10 - 0x40) = r7\nr3 = 3\nr3 = atomic_fetch_add((u64 *)(r10 - 0x40), r3)\n{end}exit"
        );
        let code = bpf_isa::encode_all(&parse_listing(&text).expect("a listing")).expect("encodable");
        let program = RawProgram::load(ProgramType::SCHED_CLS, &code, &RawOptions::default()).expect("accepted");
        program.test_run(&[0; 64], None, 1).expect("it runs").retval
    };
    assert_eq!(run("r0 = r3\n"), 0);
    match run("r0 = 1\nif r3 & r3 goto +1\nr0 = 0\n") {
        0 => println!("this kernel tests what was fetched"),
        v => println!("this kernel gives {v}"),
    }
}

/// A number to which a function that is called adds the address of its frame. Linux 6.18 takes the sum for an address of the
/// *program's* frame (`adjust_ptr_min_max_vals` in kernel/bpf/verifier.c copies all of the address but `frameno`), so it
/// believes that the store through it changed that one, and removes the jump that decides between 1 and 2. Generated
/// functions add the number to the address; [`bpf_prove::Beliefs`] keeps programs with the other form as they are.
#[test]
fn a_number_is_added_to_the_address_of_a_frame() {
    if !permitted() {
        return;
    }
    let run = |sum: &str| {
        let text = format!(
            "r6 = *(u32 *)(r1 + 0)\n*(u64 *)(r10 - 8) = r6\ncall pc+5\nr0 = 1\nr1 = *(u64 *)(r10 - 8)\n\
             if r1 == 5 goto +1\nr0 = 2\nexit\n\
             r2 = 0\n{sum}*(u64 *)(r3 - 8) = 5\nr0 = 0\nexit"
        );
        let code = bpf_isa::encode_all(&parse_listing(&text).expect("a listing")).expect("encodable");
        let program = RawProgram::load(ProgramType::SCHED_CLS, &code, &RawOptions::default()).expect("accepted");
        program.test_run(&[0; 64], None, 1).expect("it runs").retval
    };
    assert_eq!(run("r3 = r10\nr3 += r2\n"), 2);
    match run("r3 = r2\nr3 += r10\n") {
        2 => println!("this kernel knows whose frame it is"),
        v => println!("this kernel gives {v}"),
    }
}
