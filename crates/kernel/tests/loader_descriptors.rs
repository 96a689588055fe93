//! What a loader has made is gone when it is dropped. In a process of its own, since descriptors are the process's.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use bpf_kernel::testing::permitted;
use bpf_kernel::{LoadOptions, Loader};

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn no_descriptor_outlives_the_loader() {
    if !permitted() {
        return;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let run = || {
        for name in ["globals.o", "kinds.o", "hooks.o", "xdp_count.o", "legacy_maps.o"] {
            let bytes = fs::read(folder.join(name)).unwrap();
            let mut loader = Loader::new(LoadOptions::default()).unwrap();
            for limit in [60_000, 60_000, 1] {
                let deadline = Instant::now() + Duration::from_millis(limit);
                loader.judge(&bytes, |_, _| true, Some(deadline)).unwrap();
            }
        }
    };
    // libbpf keeps what it has found out about the kernel.
    run();
    let before = open_descriptors();
    run();
    assert_eq!(open_descriptors(), before);
}
