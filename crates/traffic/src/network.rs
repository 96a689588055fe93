//! Two network namespaces with two cables between them: one sends and receives, in the other is the device under test.
//!
//! ```text
//!  tester             device under test
//!  send  ───────────▶ in        the program under test runs here, on a processor of its own
//!  send  ◀─────────── in        XDP_TX
//!  back  ◀─────────── out       XDP_REDIRECT
//! ```
//!
//! Promises: nothing outside the two namespaces is touched, and all of it is gone with this process.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;

use crate::sys;

/// Addresses of the sending and of the receiving network: those of `192.18.0.0/15`, which are for such tests (RFC 2544, C.2.2).
pub const IN_ADDRESS: &str = "198.18.0.1";
/// Where what is forwarded goes.
pub const BACK_ADDRESS: &str = "198.19.0.2";
/// The hardware address of the device where the program runs.
pub const IN_MAC: &str = "02:00:00:00:00:01";
/// The hardware address of the device behind the one that forwards.
pub const BACK_MAC: &str = "02:00:00:00:00:04";
const NET: u32 = 24;

/// One of the two namespaces.
pub struct Network(OwnedFd);

impl Network {
    fn new() -> Result<Network, String> {
        bpf_kernel::own_network().map_err(|e| e.to_string())?;
        let network = Network(sys::network_of_thread().map_err(|e| format!("the new network: {e}"))?);
        // Nobody asks for neighbours or routers then: all packets are ours.
        fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").map_err(|e| format!("switching IPv6 off: {e}"))?;
        fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1")
            .map_err(|e| format!("switching IPv6 off: {e}"))?;
        Ok(network)
    }

    /// Moves the calling thread here.
    ///
    /// # Errors
    /// What the system says.
    pub fn enter(&self) -> Result<(), String> {
        sys::enter_network(self.0.as_fd()).map_err(|e| format!("entering a network: {e}"))
    }
}

/// Both, with their cables.
pub struct Place {
    /// Sends and receives.
    pub tester: Network,
    /// The device under test.
    pub device: Network,
}

impl Place {
    /// Lays the cables. The calling thread is in the device's network afterwards.
    ///
    /// # Errors
    /// What is missing: rights, or the program `ip`.
    pub fn new() -> Result<Place, String> {
        let device = Network::new()?;
        let tester = Network::new()?;
        let other = sys::path_of(&device.0);
        for (here, there) in [("send", "in"), ("back", "out")] {
            ip(&["link", "add", here, "type", "veth", "peer", "name", there, "netns", &other])?;
        }
        ip(&["link", "set", "back", "address", BACK_MAC])?;
        up(&["send", "back"])?;
        device.enter()?;
        ip(&["link", "set", "in", "address", IN_MAC])?;
        up(&["in", "out"])?;
        ip(&["address", "add", &format!("{IN_ADDRESS}/{NET}"), "dev", "in"])?;
        ip(&["address", "add", &format!("198.19.0.1/{NET}"), "dev", "out"])?;
        ip(&["neighbour", "add", BACK_ADDRESS, "lladdr", BACK_MAC, "dev", "out"])?;
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").map_err(|e| format!("forwarding: {e}"))?;
        Ok(Place { tester, device })
    }
}

/// Has packets of the device `in` handled by a thread of its own, on that processor. The calling thread is in the
/// device's network, and an XDP program is attached.
///
/// # Errors
/// Where the kernel does not have such threads (Linux 5.12).
pub fn handle_on(processor: usize) -> Result<(), String> {
    // What stands below /sys/class/net is what the mount belongs to, not the reader.
    let script = "mount -t sysfs none /sys && echo 1 > /sys/class/net/in/threaded";
    run("unshare", &["-m", "sh", "-c", script])?;
    for entry in fs::read_dir("/proc").map_err(|e| e.to_string())?.flatten() {
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        let thread = entry.file_name().to_str().and_then(|n| n.parse().ok());
        if let (true, Some(thread)) = (name.starts_with("napi/in-"), thread) {
            return sys::keep_on(thread, processor).map_err(|e| format!("moving the thread of the device: {e}"));
        }
    }
    Err("the kernel has made no thread for the device".into())
}

/// The number of a device of the calling thread's network.
///
/// # Errors
/// If `ip` does not know it.
pub fn number(device: &str) -> Result<u32, String> {
    of(&["link", "show", "dev", device], "/0/ifindex")?.try_into().map_err(|_| "a number of a device".into())
}

/// Packets that have come to a device of the calling thread's network and were handled by its XDP program.
///
/// # Errors
/// If `ip` does not tell.
pub fn handled(device: &str) -> Result<u64, String> {
    of(&["-s", "link", "show", "dev", device], "/0/stats64/rx/packets")
}

fn of(asked: &[&str], pointer: &str) -> Result<u64, String> {
    let text = ip(&[&["-j"], asked].concat())?;
    let answer: serde_json::Value = serde_json::from_str(&text).map_err(|e| format!("ip: {e}"))?;
    answer.pointer(pointer).and_then(serde_json::Value::as_u64).ok_or_else(|| format!("ip does not tell {pointer}"))
}

fn up(devices: &[&str]) -> Result<(), String> {
    devices.iter().try_for_each(|device| ip(&["link", "set", device, "up"]).map(drop))
}

fn ip(words: &[&str]) -> Result<String, String> {
    run("ip", words)
}

fn run(program: &str, words: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(words).output();
    let output = output.map_err(|e: io::Error| format!("{program}: {e} (Debian's packages iproute2, util-linux)"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{program} {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}
