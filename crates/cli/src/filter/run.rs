//! A filter over a capture.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use bpf_capture::{Capture, Writer, link};
use bpf_filter::{Actions, Beside, Filter, Form, Hook, Jit, LinkType, Options, Packet, Source};
use bpf_kernel::{LoadOptions, LoadedObject};
use indicatif::{ProgressBar, ProgressStyle};

use super::args::{Engine, FilterArgs};
use super::profile;
use super::report::Report;
use super::source::{compile, inputs, snaplen, warn_if_unproven};
use crate::failure::{Failure, exit};
use crate::files::{self, Destination, Pieces};
use crate::progress::Interrupt;

/// Verdicts are printed in pieces of so many bytes.
const PIECE: usize = 1 << 16;

/// The kernel hands larger packets to XDP programs in pieces, of which a program reads the first: a page, but what stands before and
/// behind the packet (`XDP_PACKET_HEADROOM`, `struct skb_shared_info`).
const ONE_PIECE: usize = 4096 - 256 - 320;

/// What runs a filter for one kind of packets.
enum Runner {
    Jit(Jit),
    Interpreter {
        filter: Box<Filter>,
        report: Option<Report>,
    },
    Kernel {
        object: LoadedObject,
        hook: Hook,
        matched: u32,
        /// The program asks for the packet's length.
        reads_length: bool,
        report: Option<Report>,
    },
}

impl Runner {
    fn new(engine: Engine, text: &str, options: &Options) -> Result<Runner, Failure> {
        let reports = options.report;
        match engine {
            // Machine code does not tell what decided.
            Engine::Jit if reports => Runner::new(Engine::Interpreter, text, options),
            Engine::Interpreter => {
                let filter = compile(text, options)?;
                warn_if_unproven(&filter, Form::Here);
                let report = reports.then(|| Report::new(&filter));
                Ok(Runner::Interpreter { filter: Box::new(filter), report })
            }
            Engine::Jit => {
                let filter = compile(text, options)?;
                let jit = filter.jit();
                warn_if_unproven(&filter, if jit.is_ok() { Form::Machine } else { Form::Here });
                // What the machine or the system does not take is interpreted.
                Ok(jit.map_or_else(|_| Runner::Interpreter { filter: Box::new(filter), report: None }, Runner::Jit))
            }
            Engine::Kernel => {
                // Network headers have no link header before them at a control group.
                let hook = if options.link_type.is_network() { Hook::CgroupSkb } else { Hook::Xdp };
                // What the packets mean the capture says, not the hook: numbers of families, and what is known besides the bytes.
                let filter = compile(text, &Options { source: Source::Replay, ..options.clone() })?;
                warn_if_unproven(&filter, Form::Kernel);
                let actions = Actions::passing(hook);
                let object = filter.object(hook, actions).map_err(|e| Failure::bad_input(e.to_string()))?;
                let loaded = LoadedObject::load(&object, &LoadOptions::default());
                let object = loaded.map_err(|e| Failure::kernel(Path::new("the filter's object"), &e))?;
                let report = reports.then(|| Report::new(&filter));
                let reads_length = filter.reads_length();
                Ok(Runner::Kernel { object, hook, matched: actions.matched as u32, reads_length, report })
            }
        }
    }

    fn accepts(&mut self, packet: &Packet) -> Result<bool, Failure> {
        match self {
            Runner::Jit(jit) => Ok(jit.run(packet)),
            Runner::Interpreter { filter, report } => {
                let run = filter.count(packet);
                report.iter_mut().for_each(|report| report.add(&run));
                Ok(run.accepted)
            }
            Runner::Kernel { object, hook, matched, reads_length, .. } => {
                const HINT: &str = "the kernel runs packets from their headers' size to about 3,500 bytes; --engine interpreter runs all";
                if *hook == Hook::Xdp && packet.captured.len() > ONE_PIECE {
                    let text = format!(
                        "a packet of {} bytes: a test run of the filter has no more than {ONE_PIECE} in one piece, and the rest is not read",
                        packet.captured.len()
                    );
                    return Err(Failure::bad_input(text).with_hint(HINT));
                }
                if *reads_length && packet.length as usize != packet.captured.len() {
                    let text = format!(
                        "a packet of {} bytes, of which {} were captured: a program of the kernel takes these for its length, which the filter asks for",
                        packet.length,
                        packet.captured.len()
                    );
                    return Err(Failure::bad_input(text)
                        .with_hint("--engine interpreter knows how long packets were on the wire"));
                }
                // A test run takes a link header away before a control group's program sees the packet.
                let run = match hook {
                    Hook::CgroupSkb => {
                        object.test_run("filter", &[&link_header(packet.captured), packet.captured].concat(), None, 1)
                    }
                    _ => object.test_run("filter", packet.captured, None, 1),
                };
                let run =
                    run.map_err(|e| Failure::kernel(Path::new("a test run of the filter"), &e).with_hint(HINT))?;
                Ok(run.retval == *matched)
            }
        }
    }

    /// What it has counted.
    fn report(self) -> Result<Option<Report>, Failure> {
        match self {
            Runner::Jit(_) => Ok(None),
            Runner::Interpreter { report, .. } => Ok(report),
            Runner::Kernel { object, mut report, .. } => {
                report.iter_mut().try_for_each(|report| report.read(&object))?;
                Ok(report)
            }
        }
    }
}

/// An Ethernet header for a packet that begins with IPv4 or IPv6.
fn link_header(network: &[u8]) -> [u8; 14] {
    let kind: u16 = match network.first().map(|first| first >> 4) {
        Some(4) => 0x0800,
        Some(6) => 0x86dd,
        _ => 0,
    };
    let mut header = [0; 14];
    header[12..].copy_from_slice(&kind.to_be_bytes());
    header
}

/// Runs a filter on each packet of a capture.
pub fn over_capture(args: &FilterArgs, path: &Path, text: &str, options: &Options) -> Result<u8, Failure> {
    let failed = |e: bpf_capture::Error| Failure::bad_input(e.to_string());
    // Packets have standard output for themselves.
    let to_stdout = args.write.as_deref().is_some_and(files::is_dash);
    let prints = [(args.verdicts, "--verdicts"), (args.count, "--count")].into_iter().find(|(is_there, _)| *is_there);
    if let (true, Some((_, option))) = (to_stdout, prints) {
        let text = format!("{option}: -w - writes packets to standard output, where that would stand between them");
        return Err(Failure::bad_input(text).with_hint("name a file behind -w"));
    }
    let destination = args.write.as_deref().map(Destination::or_stdout).transpose()?;
    if let Some(destination) = &destination {
        let inputs = inputs(args);
        let inputs: Vec<&Path> = inputs.iter().map(PathBuf::as_path).collect();
        destination.overwrites_none("what matches", &inputs, "name another file behind -w")?;
    }
    if files::is_dash(path) && args.profile.as_deref().is_some_and(files::is_dash) {
        let text = "--profile -: standard input is taken by --read -";
        return Err(Failure::bad_input(text).with_hint("name a file for one of them"));
    }
    let mut capture = Capture::open(path).map_err(failed)?;
    let mut runners: HashMap<(u16, bool), Runner> = HashMap::new();
    // The filter is compiled for the file's own link type even if the file has no packet: errors are told.
    let filtered = |link_type: u16| match args.link_type {
        Some(_) => options.link_type,
        None => LinkType(link::dlt(link_type)),
    };
    let typical = profile::of(args, filtered(capture.link_type()))?;
    let of = |link_type: u16, swapped: bool| -> Result<Runner, Failure> {
        let link_type = filtered(link_type);
        // Of the other link types of a pcapng file the profile says nothing.
        let profile = typical.clone().filter(|profile| profile.link_type() == link_type);
        Runner::new(
            args.engine.unwrap_or(Engine::Jit),
            text,
            &Options { link_type, is_swapped: swapped, profile, ..options.clone() },
        )
    };
    runners.insert((capture.link_type(), capture.swapped()), of(capture.link_type(), capture.swapped())?);
    let mut writer = match destination.map(Pieces::to).transpose()? {
        Some(pieces) => {
            let writer = Writer::create(pieces.path(), capture.link_type(), capture.snapshot(), true);
            Some((writer.map_err(failed)?, pieces))
        }
        None => None,
    };
    let first_link = capture.link_type();
    let bar = bar(capture.size());
    let interrupt = Interrupt::listen();
    let accepted_length = snaplen(args).unwrap_or(capture.snapshot());
    let (mut seen, mut matches, mut verdicts) = (0u64, 0u64, String::new());
    let mut ended = Ok(());
    loop {
        if interrupt.requested() {
            ended = Err(Failure {
                code: exit::INTERRUPTED,
                message: format!("interrupted behind packet {seen}"),
                hint: None,
            });
            break;
        }
        let position = capture.position();
        let packet = match capture.next_packet() {
            Ok(Some(packet)) => packet,
            Ok(None) => break,
            Err(e) => {
                ended = Err(failed(e));
                break;
            }
        };
        seen += 1;
        if seen.is_multiple_of(4096) {
            bar.set_position(position);
        }
        let key = (packet.link_type, packet.swapped);
        let runner = match runners.entry(key) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => entry.insert(of(packet.link_type, packet.swapped)?),
        };
        let asked = Packet { captured: packet.captured, length: packet.length, beside: Beside::default() };
        let accepted = match runner.accepts(&asked) {
            Ok(accepted) => accepted,
            Err(e) => {
                ended = Err(Failure { message: format!("packet {seen}: {}", e.message), ..e });
                seen -= 1;
                break;
            }
        };
        matches += u64::from(accepted);
        if args.verdicts {
            let _ = writeln!(verdicts, "{}", if accepted { accepted_length } else { 0 });
            if verdicts.len() > PIECE {
                files::print(&std::mem::take(&mut verdicts))?;
            }
        }
        if let (true, Some((writer, _))) = (accepted, &mut writer) {
            if packet.link_type != first_link {
                return Err(Failure::bad_input(format!(
                    "{}: packet {seen} has another link type than the first: one pcap file holds one",
                    path.display()
                )));
            }
            writer.write(&packet).map_err(failed)?;
        }
    }
    bar.finish_and_clear();
    // What came before a damaged packet, one that the kernel does not run, or an interruption, is there.
    if let Some((mut writer, pieces)) = writer {
        writer.flush().map_err(failed)?;
        pieces.finish()?;
    }
    files::print(&verdicts)?;
    if args.count {
        files::print(&format!("{matches}\n"))?;
    } else if !args.verdicts && !to_stdout {
        files::print(&format!("{matches} of {seen} packets match\n"))?;
    }
    let reports = runners.into_values().map(Runner::report).collect::<Result<Vec<_>, Failure>>()?;
    if let Some(report) = reports.into_iter().flatten().reduce(Report::joined) {
        let table = report.table();
        if to_stdout {
            files::complain(table.trim_end());
        } else {
            files::print(&table)?;
        }
    }
    ended.map(|()| exit::YES)
}

fn bar(size: Option<u64>) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = size.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed:>4} [{bar:24}] {bytes}/{total_bytes} {eta}") {
        bar.set_style(style);
    }
    bar
}
