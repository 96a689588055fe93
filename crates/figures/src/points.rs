//! What is measured of a filter: operations and nanoseconds per packet of everything that runs it, over each set of packets.

use std::collections::BTreeMap;

use bpf_filter::{Filter, Hook, Jit, Lookup, Options, compile};
use bpf_pcap_oracle::library::NETMASK_UNKNOWN;
use bpf_pcap_oracle::{Libpcap, Prepared, interpreter};

use crate::filters::Subject;
use crate::kernel::{self, InKernel};
use crate::native::NativeFilter;
use crate::packets::{Matching, PacketSet, accepts, packet_sets, whole};
use crate::timing::{Rounds, Turn, over};

/// What runs a filter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Runner {
    /// libpcap's interpreter and its program, as it was before its optimizer.
    LibpcapPlain,
    /// After it.
    Libpcap,
    /// Our interpreter and the filter as it stands.
    InterpreterPlain,
    /// Optimized.
    Interpreter,
    /// Machine code of the filter as it stands.
    JitPlain,
    /// Optimized.
    Jit,
    /// The same, with comparisons in a row.
    JitLinear,
    /// The same, with tables.
    JitTable,
    /// C, compiled by clang.
    C,
    /// XDP in the kernel, as it stands: nanoseconds over those of an empty program.
    KernelPlain,
    /// Optimized.
    Kernel,
}

impl Runner {
    /// How it is called in tables.
    pub fn name(self) -> &'static str {
        match self {
            Runner::LibpcapPlain => "libpcap, unoptimized",
            Runner::Libpcap => "libpcap, optimized",
            Runner::InterpreterPlain => "interpreted, unoptimized",
            Runner::Interpreter => "interpreted, optimized",
            Runner::JitPlain => "JIT, unoptimized",
            Runner::Jit => "JIT, optimized",
            Runner::JitLinear => "JIT, linear",
            Runner::JitTable => "JIT, table",
            Runner::C => "C, clang -O2",
            Runner::KernelPlain => "kernel, unoptimized",
            Runner::Kernel => "kernel, optimized",
        }
    }
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Packets of each set.
    pub packets: usize,
    /// Rounds.
    pub rounds: usize,
    /// Packets of a set that are run in the kernel.
    pub kernel_packets: usize,
    /// Repetitions of each of them in a round.
    pub repetitions: u32,
    /// What packets and hosts are drawn from.
    pub seed: u64,
}

/// What was measured of one filter over one set of packets.
#[derive(Clone, Debug)]
pub struct Point {
    /// The filter.
    pub subject: Subject,
    /// The packets.
    pub matching: Matching,
    /// Nanoseconds per packet.
    pub nanoseconds: BTreeMap<Runner, f64>,
    /// Operations, or instructions, executed per packet, where they are counted.
    pub operations: BTreeMap<Runner, f64>,
}

/// One filter, by all that runs it.
struct Contenders<'a> {
    filters: Vec<(Runner, Filter)>,
    jits: Vec<(Runner, Jit)>,
    libpcap: Vec<(Runner, Prepared<'a>)>,
    native: Option<NativeFilter<'a>>,
    kernel: Vec<(Runner, InKernel)>,
    empty: Option<InKernel>,
}

/// Measures a filter over a set of each kind.
///
/// # Errors
/// If it does not compile, or something that runs it has another verdict of a packet than the filter as it stands.
pub fn measure(
    subject: &Subject,
    libpcap: Option<&Libpcap>,
    native: Option<NativeFilter<'_>>,
    has_kernel: bool,
    extent: Extent,
) -> Result<Vec<Point>, String> {
    let contenders = Contenders::of(subject, libpcap, native, has_kernel)?;
    let sets = packet_sets(&subject.expression, extent.packets, extent.seed)?;
    sets.iter().map(|set| contenders.point(subject, set, extent)).collect()
}

impl<'a> Contenders<'a> {
    fn of(
        subject: &Subject,
        libpcap: Option<&'a Libpcap>,
        native: Option<NativeFilter<'a>>,
        has_kernel: bool,
    ) -> Result<Contenders<'a>, String> {
        let text = &subject.expression;
        let filter = |options: &Options| compile(text, options).map_err(|e| e.render(text));
        let (optimize, default) = (false, Options::default());
        let plain = filter(&Options { optimize, ..default.clone() })?;
        let fast = filter(&default)?;
        let jit = |filter: &Filter| filter.jit().map_err(|e| e.to_string());
        let mut jits = vec![(Runner::JitPlain, jit(&plain)?), (Runner::Jit, jit(&fast)?)];
        for (runner, lookup) in [(Runner::JitLinear, Lookup::Linear), (Runner::JitTable, Lookup::Table)] {
            jits.push((runner, jit(&filter(&Options { lookup, ..default.clone() })?)?));
        }
        let mut theirs = Vec::new();
        if let Some(library) = libpcap {
            for (runner, optimize) in [(Runner::LibpcapPlain, false), (Runner::Libpcap, true)] {
                let program = library.compile(text, 1, 262_144, optimize, NETMASK_UNKNOWN)?;
                theirs.push((runner, library.prepare(program).ok_or("libpcap does not take its own program")?));
            }
        }
        let mut programs = Vec::new();
        if has_kernel {
            let options = kernel::options(Hook::Xdp);
            let plain = filter(&Options { optimize, ..options.clone() })?;
            programs.push((Runner::KernelPlain, InKernel::load(&plain, Hook::Xdp)?));
            programs.push((Runner::Kernel, InKernel::load(&filter(&options)?, Hook::Xdp)?));
        }
        let empty = has_kernel.then(|| InKernel::empty(Hook::Xdp)).transpose()?;
        let filters = vec![(Runner::InterpreterPlain, plain), (Runner::Interpreter, fast)];
        Ok(Contenders { filters, jits, libpcap: theirs, native, kernel: programs, empty })
    }

    fn point(&self, subject: &Subject, set: &PacketSet, extent: Extent) -> Result<Point, String> {
        self.agree(set, extent).map_err(|e| format!("{}: {e}", subject.expression))?;
        let packets = &set.packets;
        let in_kernel = &packets[..extent.kernel_packets.min(packets.len())];
        let (mut runners, mut turns): (Vec<Runner>, Vec<Turn<'_>>) = (Vec::new(), Vec::new());
        let mut operations = BTreeMap::new();
        let per_packet = |sum: u64| sum as f64 / packets.len() as f64;
        for (runner, program) in &self.libpcap {
            let executed = |p: &Vec<u8>| interpreter::run(program.program(), p, p.len() as u32).executed;
            operations.insert(*runner, per_packet(packets.iter().map(executed).sum()));
            runners.push(*runner);
            turns.push(over(packets, 1, move |p| program.run(p, p.len() as u32) != 0));
        }
        for (runner, filter) in &self.filters {
            operations.insert(*runner, per_packet(packets.iter().map(|p| filter.count(&whole(p)).operations).sum()));
            runners.push(*runner);
            turns.push(over(packets, 1, move |p| accepts(filter, p)));
        }
        for (runner, jit) in &self.jits {
            runners.push(*runner);
            turns.push(over(packets, 4, move |p| jit.run(&whole(p))));
        }
        if let Some(native) = self.native {
            runners.push(Runner::C);
            turns.push(over(packets, 4, move |p| native.accepts(p)));
        }
        let first_in_kernel = turns.len();
        for (runner, program) in &self.kernel {
            runners.push(*runner);
            turns.push(program.turn(in_kernel, extent.repetitions));
        }
        turns.extend(self.empty.iter().map(|empty| empty.turn(in_kernel, extent.repetitions)));
        let rounds = Rounds::run(extent.rounds, &mut turns);
        let empty = turns.len() - 1;
        let time = |i: usize| if i < first_in_kernel { rounds.median(i) } else { rounds.difference(i, empty) };
        let nanoseconds = runners.iter().enumerate().map(|(i, runner)| (*runner, time(i))).collect();
        Ok(Point { subject: subject.clone(), matching: set.matching, nanoseconds, operations })
    }

    /// All verdicts are those of the filter as it stands.
    fn agree(&self, set: &PacketSet, extent: Extent) -> Result<(), String> {
        let wrong = |runner: Runner| format!("{} has another verdict", runner.name());
        for (i, packet) in set.packets.iter().enumerate() {
            let wanted = accepts(&self.filters[0].1, packet);
            let theirs = self.libpcap.iter().map(|(r, p)| (*r, p.run(packet, packet.len() as u32) != 0));
            let ours = self.filters.iter().map(|(r, f)| (*r, accepts(f, packet)));
            let jits = self.jits.iter().map(|(r, j)| (*r, j.run(&whole(packet))));
            let native = self.native.iter().map(|n| (Runner::C, n.accepts(packet)));
            if let Some((runner, _)) = theirs.chain(ours).chain(jits).chain(native).find(|(_, is)| *is != wanted) {
                return Err(wrong(runner));
            }
            if i < extent.kernel_packets {
                for (runner, program) in &self.kernel {
                    if program.accepts(packet)? != wanted {
                        return Err(wrong(*runner));
                    }
                }
            }
        }
        Ok(())
    }
}
