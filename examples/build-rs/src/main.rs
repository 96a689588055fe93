//! Loads the object that `build.rs` has made, runs it on one packet, and looks into its map. It attaches nothing.
//!
//! Exit codes: 0 the packet was counted; 1 it was not, or the object does not load; 77 no right to load programs here.

use std::error::Error;
use std::process::ExitCode;

use aya::maps::HashMap;
use aya::programs::{TestRun, TestRunOptions, Xdp};
use aya::{Ebpf, Pod, include_bytes_aligned};

/// The protocol of the packet.
const UDP: u32 = 17;

/// The map's value.
#[derive(Clone, Copy)]
#[repr(C)]
struct Count {
    packets: u64,
    bytes: u64,
}

/// SAFETY: two numbers, without padding.
unsafe impl Pod for Count {}

fn main() -> ExitCode {
    match count() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(if is_denied(&*error) { 77 } else { 1 })
        }
    }
}

/// Whether the kernel has denied a right.
fn is_denied(error: &(dyn Error + 'static)) -> bool {
    let denied = |e: &std::io::Error| e.kind() == std::io::ErrorKind::PermissionDenied;
    error.downcast_ref::<std::io::Error>().is_some_and(denied) || error.source().is_some_and(is_denied)
}

fn count() -> Result<bool, Box<dyn Error>> {
    let mut object = Ebpf::load(include_bytes_aligned!(concat!(env!("OUT_DIR"), "/xdp_count.o")))?;
    let program: &mut Xdp = object.program_mut("xdp_count").ok_or("no such program")?.try_into()?;
    program.load()?;
    // Ethernet and IPv4 with UDP inside.
    let mut packet = [0; 64];
    (packet[12], packet[14], packet[17], packet[23]) = (0x08, 0x45, 50, 17);
    let run = program.test_run(TestRunOptions { data_in: Some(&packet), ..TestRunOptions::default() })?;
    let counters: HashMap<_, u32, Count> = HashMap::try_from(object.map("counters").ok_or("no such map")?)?;
    let Count { packets, bytes } = counters.get(&UDP, 0)?;
    println!("returned {}, counted {packets} packets of {bytes} bytes", run.return_value);
    Ok(packets == 1 && bytes == 64)
}
