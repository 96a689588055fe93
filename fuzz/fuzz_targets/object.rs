//! Any file: it is refused with an error, or read, cut into functions, and written back byte for byte.
#![no_main]

use bpf_object::{FuncId, Object, WriteOptions};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(object) = Object::parse(bytes.to_vec()) else { return };
    for id in 0..object.functions().len() {
        let _ = bpf_program::build(&object, FuncId(id));
    }
    assert_eq!(object.write(&WriteOptions::default()).expect("nothing was changed").bytes, bytes);
});
