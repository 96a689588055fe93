//! Checksum helpers where ones' complement has two zeros. Found by the campaign's lane `exec`.

use std::collections::HashMap;

use bpf_isa::{Insn, parse_listing};
use bpf_kernel::{ProgramType, RawOptions, RawProgram, permitted, testing};
use bpf_program::{ProgKind, build_from_insns};
use bpf_semantics::interp::KernelHost;

/// The packet's first two bytes after `l3_csum_replace(skb, 0, from, to, flags)`, in the kernel and here.
fn replaced(check: [u8; 2], from: u32, to: u32, flags: u32) -> (Option<[u8; 2]>, [u8; 2]) {
    let text = format!("r2 = 0x0\nr3 = {from:#x} ll\nr4 = {to:#x} ll\nr5 = {flags:#x}\ncall 0xa\nr0 = 0x0\nexit\n");
    let insns: Vec<Insn> = parse_listing(&text).expect("a listing");
    let bytes = bpf_isa::encode_all(&insns).expect("encodable");
    let mut packet = vec![0x11; 64];
    packet[..2].copy_from_slice(&check);
    let theirs = permitted().require().is_ok().then(|| {
        let program = RawProgram::load(ProgramType::SCHED_CLS, &bytes, &RawOptions::default()).expect("accepted");
        let out = program.test_run(&packet, None, 1).expect("it runs").data_out;
        [out[0], out[1]]
    });
    let decoded = bpf_isa::decode_all(&bytes).expect("decodable");
    let f = build_from_insns("f", ProgKind::Skb, &decoded, HashMap::new()).expect("a graph");
    let mut interp = KernelHost::new(ProgKind::Skb, &packet).start();
    interp.run(&f, 100).expect("it runs");
    let out = interp.host.packet();
    (theirs, [out[0], out[1]])
}

#[test]
fn the_right_zero_comes_out() {
    // Without a kernel, the interpreter alone.
    testing::permitted();
    assert_eq!(replaced([0xff, 0xff], 0, 0, 0).1, [0, 0], "by a difference");
    for check in [0u16, 1, 0x7fff, 0x8000, 0xfffe, 0xffff] {
        for (from, to) in [(0, 0), (0, 0xffff), (0xffff, 0), (0x1234, 0x1234), (0xffff_ffff, 0), (0, 0xffff_0000)] {
            for flags in [0, 2, 4] {
                // Without a size, `to` is a difference and `from` must be 0.
                let from = if flags == 0 { 0 } else { from };
                let (theirs, ours) = replaced(check.to_le_bytes(), from, to, flags);
                if let Some(theirs) = theirs {
                    assert_eq!(theirs, ours, "kernel and interpreter: {check:#x} {from:#x} {to:#x} {flags}");
                }
            }
        }
    }
}
