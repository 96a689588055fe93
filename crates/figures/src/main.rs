//! Measures the figures of the BPF+ paper, and writes them as a document with plots: `make filter-figures`.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use bpf_figures::asked::{against_libpcap, hosts_at_hook};
use bpf_figures::document::{Report, write};
use bpf_figures::filters::{Family, Subject, chains, tcp_with_hosts};
use bpf_figures::native::Native;
use bpf_figures::points::{Extent, measure};
use bpf_filter::Hook;
use bpf_kernel::Permission;
use bpf_pcap_oracle::Libpcap;
use bpf_pcap_oracle::data::Data;
use bpf_testgen::c::Clang;
use clap::Parser;

/// Measures filters as the BPF+ paper does, in some minutes. Nothing is attached to the kernel.
#[derive(Parser)]
struct Args {
    /// Where `filter-figures.md` and `figures/` are written
    #[arg(default_value = "docs")]
    folder: PathBuf,
    /// Rounds of each measurement
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Generated packets of each set
    #[arg(long, default_value_t = 4096)]
    packets: usize,
    /// What packets and hosts are drawn from
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Result<(), String> {
    let extent =
        Extent { packets: args.packets, rounds: args.rounds, kernel_packets: 8, repetitions: 20_000, seed: args.seed };
    let mut missing = Vec::new();
    let mut lacks = |what: String| {
        eprintln!("left out: {what}");
        missing.push(what);
    };
    let libpcap = Libpcap::load();
    let clang = Clang::find();
    let data = Data::find();
    let has_kernel = match bpf_kernel::permitted() {
        Permission::Yes => true,
        Permission::No(why) => {
            lacks(format!("columns of the kernel, bpf() is not permitted: {why}"));
            false
        }
    };
    let wanted = [
        (libpcap.is_none(), "libpcap, there is no libpcap.so.0.8"),
        (clang.is_none(), "C, there is no clang (BPF_OPT_CLANG names one)"),
        (data.is_none(), "the 27 predicates and the filters of ../shared/filter, the folder is not there"),
    ];
    wanted.iter().filter(|(lacking, _)| *lacking).for_each(|(_, what)| lacks((*what).to_owned()));

    let mut subjects = chains();
    subjects.extend(tcp_with_hosts(&[1, 2, 4, 8, 16, 32, 64], args.seed));
    let filters = data.as_ref().map(Data::filters).unwrap_or_default();
    let large = filters.iter().find(|f| f.name == "paxson-like-27").map(|f| f.expression.clone());
    subjects.extend(large.map(|expression| Subject { family: Family::Large, predicates: 27, expression, c: None }));
    let scratch = tempfile::tempdir().map_err(|e| e.to_string())?;
    let bodies: Vec<&str> = subjects.iter().map(|s| s.c.as_deref().unwrap_or("0")).collect();
    let native = clang.as_ref().map(|clang| Native::compile(clang, &bodies, scratch.path())).transpose()?;
    let mut points = Vec::new();
    for (i, subject) in subjects.iter().enumerate() {
        eprintln!("{}/{}: {}", i + 1, subjects.len(), subject.name());
        let native = native.as_ref().filter(|_| subject.c.is_some()).map(|n| n.filter(i)).transpose()?;
        points.extend(measure(subject, libpcap.as_ref(), native, has_kernel, extent)?);
    }
    let mut hosts = Vec::new();
    let places = [(1000, Hook::Xdp), (1000, Hook::Tc), (10_000, Hook::Xdp), (10_000, Hook::Tc)];
    for (count, hook) in places.into_iter().filter(|_| has_kernel) {
        eprintln!("{count} hosts, {hook:?}");
        hosts.push(hosts_at_hook(count, hook, extent)?);
    }
    let mut against = Vec::new();
    if let (Some(data), Some(libpcap)) = (&data, &libpcap) {
        let packets = data.packets(1);
        for filter in &filters {
            eprintln!("{}", filter.name);
            against.push(against_libpcap(filter, &packets, libpcap, data, (has_kernel, extent.rounds))?);
        }
    }
    let compared = [libpcap.map(|l| l.version()), clang.map(|c| c.version())].into_iter().flatten();
    let machine = format!(
        "Measured on {}, Linux {}, {}; {}.",
        today(),
        bpf_kernel::release(),
        bpf_kernel::processor().unwrap_or_else(|| "an unknown processor".to_owned()),
        compared.collect::<Vec<_>>().join("; ")
    );
    write(&Report { machine, missing, extent, points, hosts, against }, &args.folder)
}

fn today() -> String {
    let out = Command::new("date").args(["-u", "+%F"]).output().map(|o| o.stdout).unwrap_or_default();
    String::from_utf8_lossy(&out).trim().to_owned()
}
