//! Any slots: what is decoded encodes to the same bytes, and its text parses to the same instruction.
#![no_main]

use bpf_isa::{Insn, decode_all, encode_all, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(decoded) = decode_all(bytes) else { return };
    let insns: Vec<Insn> = decoded.into_iter().map(|(_, insn)| insn).collect();
    let encoded = encode_all(&insns).expect("what was decoded can be encoded");
    assert_eq!(encoded, bytes);
    for insn in insns.iter().filter(|insn| !matches!(insn, Insn::Opaque(..))) {
        if let Ok(parsed) = parse(&insn.to_string()) {
            assert_eq!(parsed, *insn, "{insn}");
        }
    }
});
