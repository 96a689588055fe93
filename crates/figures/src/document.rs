//! The figures as tables of a document, with plots beside it.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::asked::{AgainstLibpcap, HostsAtHook};
use crate::filters::Family;
use crate::packets::Matching;
use crate::plots::{Line, draw};
use crate::points::{Extent, Point, Runner};
use crate::timing::geometric_mean;

/// All that was measured.
#[derive(Clone, Debug)]
pub struct Report {
    /// Day, kernel, processor, and the versions of what was compared with.
    pub machine: String,
    /// What is left out, and why.
    pub missing: Vec<String>,
    /// How much was measured.
    pub extent: Extent,
    /// The filters of the paper's figures.
    pub points: Vec<Point>,
    /// Hosts at hooks.
    pub hosts: Vec<HostsAtHook>,
    /// Machine code against libpcap's interpreter.
    pub against: Vec<AgainstLibpcap>,
}

/// Runners of a figure.
const ALL: [Runner; 8] = [
    Runner::LibpcapPlain,
    Runner::Libpcap,
    Runner::InterpreterPlain,
    Runner::Interpreter,
    Runner::JitPlain,
    Runner::Jit,
    Runner::KernelPlain,
    Runner::Kernel,
];
const LOOKUPS: [Runner; 4] = [Runner::JitLinear, Runner::JitTable, Runner::Jit, Runner::C];

/// Writes `filter-figures.md` and `figures/*.svg` to a folder.
///
/// # Errors
/// If they cannot be written.
pub fn write(report: &Report, folder: &Path) -> Result<(), String> {
    let fail = |e: std::io::Error| format!("{}: {e}", folder.display());
    let figures = folder.join("figures");
    fs::create_dir_all(&figures).map_err(fail)?;
    let half = |families: &[Family], runners: &[Runner]| report.lines(families, &[Matching::Half], runners);
    let chains = [Family::And, Family::Or];
    let six = report.lines(&chains, &Matching::EACH, &[Runner::Jit]);
    draw(&figures.join("filter-6.svg"), "Figure 6: optimized, JIT", "predicates", &six)?;
    draw(
        &figures.join("filter-7.svg"),
        "Figure 7: TCP and hosts, half match",
        "hosts",
        &half(&[Family::Hosts], &LOOKUPS),
    )?;
    draw(
        &figures.join("filter-8.svg"),
        "Figure 8: chains of and, half match",
        "predicates",
        &half(&[Family::And], &ALL),
    )?;
    draw(&figures.join("filter-9.svg"), "Figure 9: TCP and hosts, half match", "hosts", &half(&[Family::Hosts], &ALL))?;
    fs::write(folder.join("filter-figures.md"), report.text()).map_err(fail)
}

impl Report {
    fn points(&self, families: &[Family]) -> impl Iterator<Item = &Point> {
        self.points.iter().filter(move |p| families.contains(&p.subject.family))
    }

    fn lines(&self, families: &[Family], sets: &[Matching], runners: &[Runner]) -> Vec<Line> {
        let mut lines = Vec::new();
        for family in families {
            for set in sets {
                for runner in runners {
                    let of = self.points(std::slice::from_ref(family)).filter(|p| p.matching == *set);
                    let time = |p: &Point| Some((p.subject.predicates as f64, *p.nanoseconds.get(runner)?));
                    let name = match sets {
                        [_] => runner.name().to_owned(),
                        _ => format!("{family:?}, {}", set.name()).to_lowercase(),
                    };
                    lines.push((name, of.filter_map(time).collect::<Vec<_>>()));
                }
            }
        }
        lines.retain(|(_, points)| !points.is_empty());
        lines
    }

    fn text(&self) -> String {
        let Extent { packets, rounds, kernel_packets, repetitions, seed } = self.extent;
        let mut text = format!(
            "# The figures of BPF+, again\n\n`make filter-figures` writes this page and its plots. {}\n\n\
             Each set has {packets} generated packets (seed {seed}): of Ethernet, 60 to 74 bytes, 75 % TCP over IPv4, the rest UDP, ICMP, \
             IPv6 and ARP before they are sorted by the filter; half of the addresses and ports are drawn from the filter's own. Times are \
             nanoseconds per packet: medians of {rounds} rounds in which all that is compared takes turns in one process. Times of the \
             kernel are those over an empty XDP program, by BPF_PROG_TEST_RUN, {repetitions} repetitions of {kernel_packets} packets a \
             round; they come in whole nanoseconds per packet, may come out below 0, and the kernel sees one packet at a time, which the \
             branch predictor learns. *ops* are libpcap's instructions and our interpreter's operations executed per packet. Nothing is \
             measured before all verdicts were found equal.\n\n",
            self.machine
        );
        for missing in &self.missing {
            let _ = writeln!(text, "Left out: {missing}.\n");
        }
        let chains = [Family::And, Family::Or];
        text += "## Figure 6: independent predicates, optimized, JIT\n\n![](figures/filter-6.svg)\n\n";
        text += &self.times(&chains, &[Runner::Jit]);
        text += "\n## Figure 7: dependent predicates, by how they are looked up\n\n![](figures/filter-7.svg)\n\n";
        text += &self.times(&[Family::Hosts], &LOOKUPS);
        text += "\n*JIT, optimized* chooses by the size of the set.\n\n## Figure 8: independent predicates\n\n![](figures/filter-8.svg)\n\n";
        text += &self.times(&chains, &ALL);
        text += "\n## Figure 9: TCP and N source hosts\n\n![](figures/filter-9.svg)\n\n";
        text += &self.times(&[Family::Hosts], &ALL);
        if self.points(&[Family::Large]).next().is_some() {
            text += "\n## The 27 predicates\n\n";
            text += &self.times(&[Family::Large], &ALL);
        }
        text += "\n## Speedups\n\nRatios of medians over all three sets, least to most.\n\n| figure | by | here | paper |\n|---|---|---:|---:|\n";
        text += &self.speedups();
        text += "\n## Operations executed per packet\n\n";
        text += &self.operations();
        text += &self.asked();
        text
    }

    fn times(&self, families: &[Family], runners: &[Runner]) -> String {
        let used: Vec<Runner> =
            runners.iter().copied().filter(|r| self.points(families).any(|p| p.nanoseconds.contains_key(r))).collect();
        let mut text = head("filter | packets", used.iter().map(|r| r.name()));
        for point in self.points(families) {
            let _ = write!(text, "| {} | {} |", point.subject.name(), point.matching.name());
            for runner in &used {
                cell(&mut text, point.nanoseconds.get(runner).copied());
            }
            text.push('\n');
        }
        text
    }

    fn operations(&self) -> String {
        let mut text = head("filter | packets", ALL[..4].iter().map(|r| r.name()));
        for point in &self.points {
            let _ = write!(text, "| {} | {} |", point.subject.name(), point.matching.name());
            for runner in &ALL[..4] {
                cell(&mut text, point.operations.get(runner).copied());
            }
            text.push('\n');
        }
        text
    }

    fn speedups(&self) -> String {
        use Runner::{Interpreter, InterpreterPlain, Jit, JitPlain, Libpcap};
        let rows: [Speedup; 12] = [
            ("8", &[Family::And, Family::Or], "all", InterpreterPlain, Jit, "3.5–9"),
            ("8", &[Family::And, Family::Or], "optimizing, interpreted", InterpreterPlain, Interpreter, "1.3–2"),
            ("8", &[Family::And, Family::Or], "optimizing, JIT", JitPlain, Jit, "0–1.4"),
            ("8", &[Family::And, Family::Or], "JIT, unoptimized", InterpreterPlain, JitPlain, "3.9–6.6"),
            ("8", &[Family::And, Family::Or], "JIT, optimized", Interpreter, Jit, "3.3–5"),
            ("8", &[Family::And, Family::Or], "JIT against libpcap", Libpcap, Jit, ""),
            ("9", &[Family::Hosts], "optimizing, interpreted", InterpreterPlain, Interpreter, "1.1–8.6"),
            ("9", &[Family::Hosts], "optimizing, JIT", JitPlain, Jit, "1.2–5.2"),
            ("9", &[Family::Hosts], "JIT, unoptimized", InterpreterPlain, JitPlain, "4.1–5.5"),
            ("9", &[Family::Hosts], "JIT, optimized", Interpreter, Jit, "2.6–4.9"),
            ("9", &[Family::Hosts], "JIT against libpcap", Libpcap, Jit, ""),
            ("27", &[Family::Large], "all", InterpreterPlain, Jit, "32"),
        ];
        let mut text = String::new();
        for (figure, families, by, slow, fast, paper) in rows {
            let ratio = |p: &Point| Some(p.nanoseconds.get(&slow)? / p.nanoseconds.get(&fast)?);
            let ratios: Vec<f64> = self.points(families).filter_map(ratio).collect();
            let (least, most) =
                ratios.iter().fold((f64::INFINITY, 0.0), |(l, m): (f64, f64), r| (l.min(*r), m.max(*r)));
            if !ratios.is_empty() {
                let _ = writeln!(text, "| {figure} | {by} | {least:.1}–{most:.1} | {paper} |");
            }
        }
        text
    }

    fn asked(&self) -> String {
        let mut text = String::new();
        if !self.hosts.is_empty() {
            text += "\n## Hosts at a hook\n\nAsked: at most 25 ns over an empty program; compiled, proof included, in 0.2 s and 2 s.\n\n";
            text += &head("hosts | hook", ["compiled, s", "slots", "verified", "match, ns", "miss, ns"].into_iter());
            for h in &self.hosts {
                let verified = h.size.1.map_or("–".to_owned(), |n| n.to_string());
                let _ = writeln!(
                    text,
                    "| {} | {:?} | {:.3} | {} | {verified} | {:.1} | {:.1} |",
                    h.hosts, h.hook, h.seconds, h.size.0, h.matched, h.missed
                );
            }
        }
        if self.against.is_empty() {
            return text;
        }
        text += "\n## Machine code against libpcap's interpreter\n\nEach filter of `../shared/filter`, over its captured Ethernet packets. \
                 Asked: 5 times on sets of values, never slower. Slots are those of eBPF for XDP, cbpfc's as recorded there.\n\n";
        let columns = ["libpcap, ns", "interpreter, ns", "JIT, ns", "times", "bytes", "slots, cbpfc", "ours"];
        text += &head("filter", columns.into_iter());
        for a in &self.against {
            let count = |n: Option<usize>| n.map_or("–".to_owned(), |n| n.to_string());
            let _ = write!(text, "| {} |", a.name);
            cell(&mut text, a.libpcap);
            cell(&mut text, Some(a.interpreter));
            cell(&mut text, Some(a.jit));
            cell(&mut text, a.libpcap.map(|l| l / a.jit));
            let _ = writeln!(text, " {} | {} | {} |", a.bytes, count(a.cbpfc), count(a.slots));
        }
        let ratio = |a: &AgainstLibpcap| Some(a.slots? as f64 / a.cbpfc? as f64);
        let slots: Vec<f64> = self.against.iter().filter_map(ratio).collect();
        if !slots.is_empty() {
            let mean = geometric_mean(slots.iter().copied());
            let _ = writeln!(text, "\nSlots are {mean:.2} of cbpfc's (geometric mean of {} filters).", slots.len());
        }
        text
    }
}

/// Figure, families, what makes the difference, the slower and the faster, and what the paper says.
type Speedup = (&'static str, &'static [Family], &'static str, Runner, Runner, &'static str);

fn head<'a>(first: &str, columns: impl Iterator<Item = &'a str> + Clone) -> String {
    let names: Vec<&str> = columns.collect();
    let left = "---|".repeat(first.split('|').count());
    format!("| {first} | {} |\n|{left}{}\n", names.join(" | "), "---:|".repeat(names.len()))
}

fn cell(text: &mut String, value: Option<f64>) {
    // Writing to a string does not fail.
    let _ = match value {
        Some(value) => write!(text, " {value:.1} |"),
        None => write!(text, " – |"),
    };
}
