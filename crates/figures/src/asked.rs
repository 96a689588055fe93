//! Two lines that filters are held to: what thousands of hosts cost at a hook, and machine code against libpcap's interpreter.

use std::time::Instant;

use bpf_filter::{Actions, Hook, Options, Packet, compile};
use bpf_pcap_oracle::Libpcap;
use bpf_pcap_oracle::data::{Data, Filter, OwnedPacket};

use crate::filters::{any_source, hosts};
use crate::kernel::{self, InKernel};
use crate::packets::{packet_sets, whole};
use crate::points::Extent;
use crate::timing::{Rounds, over};

/// What hosts cost at a hook.
#[derive(Clone, Debug)]
pub struct HostsAtHook {
    /// How many.
    pub hosts: usize,
    /// Where.
    pub hook: Hook,
    /// Seconds to compile the filter to an object, proof included.
    pub seconds: f64,
    /// Slots of the program, and instructions that the verifier processed.
    pub size: (usize, Option<u64>),
    /// Nanoseconds over an empty program, of packets that match.
    pub matched: f64,
    /// Of those that do not.
    pub missed: f64,
}

/// Measures hosts at a hook, where the kernel is there.
///
/// # Errors
/// If the filter does not compile or load, or no packets are found.
pub fn hosts_at_hook(count: usize, hook: Hook, extent: Extent) -> Result<HostsAtHook, String> {
    let text = any_source(&hosts(count, extent.seed));
    let begin = Instant::now();
    let filter = compile(&text, &kernel::options(hook)).map_err(|e| e.render(&text))?;
    // The form is made and proven when it is first asked for.
    filter.object(hook, Actions::passing(hook)).map_err(|e| e.to_string())?;
    let seconds = begin.elapsed().as_secs_f64();
    let (program, empty) = (InKernel::load(&filter, hook)?, InKernel::empty(hook)?);
    let sets = packet_sets(&text, extent.kernel_packets, extent.seed)?;
    let over_empty = |packets: &[Vec<u8>]| {
        let mut turns = [program.turn(packets, extent.repetitions), empty.turn(packets, extent.repetitions)];
        Rounds::run(extent.rounds, &mut turns).difference(0, 1)
    };
    let (matched, missed) = (over_empty(&sets[0].packets), over_empty(&sets[2].packets));
    Ok(HostsAtHook { hosts: count, hook, seconds, size: program.size(), matched, missed })
}

/// Machine code against libpcap's interpreter, of a filter.
#[derive(Clone, Debug)]
pub struct AgainstLibpcap {
    /// The filter's name.
    pub name: String,
    /// Nanoseconds of libpcap's interpreter, if libpcap compiles the filter.
    pub libpcap: Option<f64>,
    /// Of our interpreter.
    pub interpreter: f64,
    /// Of machine code.
    pub jit: f64,
    /// Bytes of machine code.
    pub bytes: usize,
    /// Slots of the program that cbpfc makes for XDP, as recorded.
    pub cbpfc: Option<usize>,
    /// Slots of ours, where the kernel is there.
    pub slots: Option<usize>,
}

/// Measures a filter of `filters.tsv` over captured packets of Ethernet.
///
/// # Errors
/// If it does not compile.
pub fn against_libpcap(
    filter: &Filter,
    packets: &[OwnedPacket],
    libpcap: &Libpcap,
    data: &Data,
    (has_kernel, rounds): (bool, usize),
) -> Result<AgainstLibpcap, String> {
    let text = &filter.expression;
    let ours =
        compile(text, &Options { netmask: Some(0xffff_ff00), ..Options::default() }).map_err(|e| e.render(text))?;
    let jit = ours.jit().map_err(|e| e.to_string())?;
    // libpcap refuses programs that are too large for it.
    let theirs = libpcap.compile(text, 1, 262_144, true, 0xffff_ff00).ok().and_then(|p| libpcap.prepare(p));
    let (jit, ours) = (&jit, &ours);
    let mut turns = vec![
        over(packets, 2, move |p| jit.run(&captured(p))),
        over(packets, 1, move |p| ours.count(&captured(p)).accepted),
    ];
    turns.extend(theirs.iter().map(|t| over(packets, 1, move |p| t.run(&p.captured, p.length) != 0)));
    let times = Rounds::run(rounds, &mut turns);
    let xdp = compile(text, &kernel::options(Hook::Xdp)).map_err(|e| e.render(text))?;
    let slots = has_kernel.then(|| InKernel::load(&xdp, Hook::Xdp)).transpose()?.map(|p| p.size().0);
    let cbpfc = data.figures("cbpfc.txt").into_iter().find(|row| row[0] == filter.name);
    let cbpfc = cbpfc.and_then(|row| row.get(2)?.strip_prefix("ebpf ")?.parse().ok());
    Ok(AgainstLibpcap {
        name: filter.name.clone(),
        libpcap: theirs.is_some().then(|| times.median(2)),
        interpreter: times.median(1),
        jit: times.median(0),
        bytes: jit.code().len(),
        cbpfc,
        slots,
    })
}

#[inline]
fn captured(packet: &OwnedPacket) -> Packet<'_> {
    Packet { length: packet.length, ..whole(&packet.captured) }
}
