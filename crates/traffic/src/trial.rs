//! Windows of traffic: packets at a rate, through one program, and what became of them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::thread::sleep;
use std::time::{Duration, Instant};

use bpf_kernel::{LoadOptions, LoadedObject, SharedWords};

use crate::network::{self, Place};
use crate::programs::{self, BUCKET, BURST};
use crate::sys;

/// Runs of the sender in one system call: some tens of milliseconds.
const RUNS: u32 = 1_000_000;
/// Its runs between two looks at queues.
const BATCH: u32 = BURST;
/// What the last packets take to arrive.
const REST: Duration = Duration::from_millis(2);

/// What was seen in one or several windows.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// Seconds.
    pub seconds: f64,
    /// Packets that were sent to the device.
    pub sent: u64,
    /// Packets that its program has handled.
    pub handled: u64,
    /// Packets that came back.
    pub received: u64,
    /// Latencies: how many took so many nanoseconds, ascending.
    pub latencies: Vec<(u64, u64)>,
}

impl Window {
    /// Packets per second that were sent.
    pub fn offered(&self) -> f64 {
        self.sent as f64 / self.seconds
    }

    /// Packets per second that got through.
    pub fn through(&self, comes_back: bool) -> f64 {
        (if comes_back { self.received } else { self.handled }) as f64 / self.seconds
    }

    /// The share of packets that was lost.
    pub fn loss(&self, comes_back: bool) -> f64 {
        let through = if comes_back { self.received } else { self.handled };
        1.0 - through.min(self.sent) as f64 / self.sent.max(1) as f64
    }

    /// The mean latency in nanoseconds; not a number where nothing came back.
    pub fn mean_latency(&self) -> f64 {
        let (sum, count) = self.latencies.iter().fold((0, 0), |(sum, count), (ns, n)| (sum + ns * n, count + n));
        sum as f64 / count as f64
    }

    /// The latency in nanoseconds that this share of packets does not exceed.
    pub fn latency(&self, share: f64) -> f64 {
        let count: u64 = self.latencies.iter().map(|(_, n)| n).sum();
        let mut left = (share * count as f64).ceil() as u64;
        for (ns, n) in &self.latencies {
            if left <= *n {
                return *ns as f64;
            }
            left -= n;
        }
        f64::NAN
    }
}

/// The sender, the receiver, and a device whose program changes from window to window.
pub struct Bench {
    place: Place,
    packet: Vec<u8>,
    sender: LoadedObject,
    state: SharedWords,
    received: SharedWords,
    latency: SharedWords,
    under_test: OwnedFd,
    // In this order: what is attached goes before what it is attached to.
    _receivers: [OwnedFd; 2],
    _receiver: LoadedObject,
}

impl Bench {
    /// Makes all ready: `packet` has its clock at `stamp`, what comes back at `stamp_back`. `first` is a program of the device.
    ///
    /// # Errors
    /// What cannot be had here.
    pub fn new(
        place: Place,
        packet: &[u8],
        (stamp, stamp_back): (usize, usize),
        first: BorrowedFd<'_>,
    ) -> Result<Bench, String> {
        let [here, there] = *sys::processors().first_chunk().ok_or("two processors are needed")?;
        place.device.enter()?;
        let attach = |fd: BorrowedFd<'_>, device: &str| -> Result<OwnedFd, String> {
            sys::attach_xdp(fd, network::number(device)?).map_err(|e| format!("attaching to {device}: {e}"))
        };
        let under_test = attach(first, "in")?;
        network::handle_on(there)?;
        place.tester.enter()?;
        let load = |bytes: &[u8]| LoadedObject::load(bytes, &LoadOptions::default()).map_err(|e| e.to_string());
        let sender = load(&programs::sender(packet, stamp, network::number("send")?)?)?;
        let receiver = load(&programs::receiver(stamp_back)?)?;
        let shared =
            |object: &LoadedObject, map: &str| object.map(map).and_then(|map| map.share()).map_err(|e| e.to_string());
        let program = receiver.program_fd("main").map_err(|e| e.to_string())?;
        let receivers = [attach(program, "send")?, attach(program, "back")?];
        sys::keep_on(0, here).map_err(|e| format!("one processor: {e}"))?;
        Ok(Bench {
            place,
            packet: packet.to_vec(),
            state: shared(&sender, "state")?,
            received: shared(&receiver, "received")?,
            latency: shared(&receiver, "latency")?,
            sender,
            under_test,
            _receivers: receivers,
            _receiver: receiver,
        })
    }

    /// Sends packets for a while at a rate, in packets per second; `None`: as many as can be sent.
    ///
    /// # Errors
    /// What the system says.
    pub fn window(&self, program: BorrowedFd<'_>, rate: Option<f64>, lasting: Duration) -> Result<Window, String> {
        self.place.device.enter()?;
        sys::replace(self.under_test.as_fd(), program).map_err(|e| format!("putting a program in: {e}"))?;
        let before = network::handled("in")?;
        self.place.tester.enter()?;
        let interval = rate.map_or(0.0, |rate| f64::from(BURST) * 1e9 / rate) as u64;
        for (word, value) in self.state.iter().zip([0, interval, 0, 0, 0]) {
            word.store(value, Relaxed);
        }
        self.received.iter().chain(self.latency.iter()).for_each(|word| word.store(0, Relaxed));
        let sender = self.sender.program_fd("main").map_err(|e| e.to_string())?;
        let begun = Instant::now();
        while begun.elapsed() < lasting {
            sys::run_live(sender, &self.packet, RUNS, BATCH).map_err(|e| format!("sending: {e}"))?;
        }
        let seconds = begun.elapsed().as_secs_f64();
        sleep(REST);
        let received = self.received[0].load(Relaxed);
        let counts = self.latency.iter().enumerate().map(|(i, n)| (i as u64 * BUCKET + BUCKET / 2, n.load(Relaxed)));
        let latencies = counts.filter(|(_, n)| *n > 0).collect();
        let sent = self.state[3].load(Relaxed);
        self.place.device.enter()?;
        let handled = network::handled("in")? - before;
        Ok(Window { seconds, sent, handled, received, latencies })
    }
}

/// Several windows as one.
pub fn together(windows: &[Window]) -> Window {
    let mut all = Window::default();
    let mut latencies = std::collections::BTreeMap::new();
    for w in windows {
        all.seconds += w.seconds;
        all.sent += w.sent;
        all.handled += w.handled;
        all.received += w.received;
        w.latencies.iter().for_each(|(ns, n)| *latencies.entry(*ns).or_insert(0) += n);
    }
    all.latencies = latencies.into_iter().collect();
    all
}

#[cfg(test)]
mod tests {
    use bpf_assembly::{Surroundings, functions, object};

    use super::*;
    use crate::packets::udp;

    fn loaded(text: &str) -> Result<LoadedObject, String> {
        let around = Surroundings { section: "xdp".into(), ..Surroundings::default() };
        let code = functions(text, "xdp").map_err(|e| e.to_string())?;
        let bytes = object(&around, &code).map_err(|e| e.to_string())?;
        LoadedObject::load(&bytes, &LoadOptions::default()).map_err(|e| e.to_string())
    }

    /// Windows of a program that sends all back, of one that drops all, and of the first one at a low rate.
    fn windows() -> Result<[Window; 3], String> {
        let place = Place::new()?;
        place.device.enter()?;
        let objects = [loaded("r0 = 3\nexit")?, loaded("r0 = 1\nexit")?];
        let [back, gone] = objects.each_ref().map(|object| object.program_fd("main").map_err(|e| e.to_string()));
        let (back, gone) = (back?, gone?);
        let packet = udp();
        let bench = Bench::new(place, &packet.bytes, (packet.stamp, packet.stamp), back)?;
        let lasting = Duration::from_millis(30);
        Ok([
            bench.window(back, None, lasting)?,
            bench.window(gone, None, lasting)?,
            bench.window(back, Some(50_000.0), lasting)?,
        ])
    }

    #[test]
    fn what_is_sent_comes_back_or_is_lost_and_latencies_are_those_of_bursts() {
        let windows = std::thread::spawn(windows).join().unwrap_or_else(|_| panic!("the thread with the windows"));
        let Some([back, gone, slow]) = bpf_kernel::testing::available(windows) else { return };
        assert!(back.sent > 10_000, "{back:?}");
        assert!(back.received > 0 && back.received <= back.handled && back.handled <= back.sent, "{back:?}");
        assert!(gone.handled > 0 && gone.received == 0 && gone.latencies.is_empty(), "{gone:?}");
        let clocks: u64 = slow.latencies.iter().map(|(_, n)| n).sum();
        assert!(slow.received > 0 && slow.offered() < 60_000.0, "{slow:?}");
        assert!(clocks > 0 && clocks <= slow.sent.div_ceil(u64::from(BURST)), "{slow:?}");
        assert!(slow.mean_latency() > 0.0 && slow.latency(0.5) <= slow.latency(0.99), "{slow:?}");
    }

    #[test]
    fn windows_add_up() {
        let one = Window { seconds: 1.0, sent: 100, handled: 90, received: 80, latencies: vec![(32, 3), (96, 1)] };
        let two = Window { latencies: vec![(32, 1)], ..one.clone() };
        let all = together(&[one, two]);
        assert_eq!((all.sent, all.handled, all.received), (200, 180, 160));
        assert_eq!(all.latencies, [(32, 4), (96, 1)]);
        assert_eq!((all.latency(0.5), all.latency(0.99)), (32.0, 96.0));
        assert!((all.loss(true) - 0.2).abs() < 1e-9 && (all.loss(false) - 0.1).abs() < 1e-9);
        assert!((all.mean_latency() - 44.8).abs() < 1e-9);
    }
}
