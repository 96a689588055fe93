//! The arguments of `bpf-opt filter`.

use std::path::PathBuf;

use bpf_filter::{Dialect, Hook, Pass, Passes};
use clap::{ArgAction, Args, ValueEnum};

/// Shown behind `bpf-opt filter --help`.
pub const HELP: &str = "\
The language is tcpdump's: pcap-filter(7). Without -o and --read the filter is printed as classic BPF,
as `tcpdump -d` does.

Examples:
  bpf-opt filter tcp port 80 -o filter.o --hook xdp      an object that passes what matches, drops the rest
  bpf-opt filter 'not port 22' -o f.o --hook tc --match drop
  bpf-opt filter udp port 53 -o f.o --hook socket --snaplen 96
  bpf-opt filter udp port 53 -o f.o --hook tc --match 0 --count    counts, and passes all (TC_ACT_OK)
  bpf-opt filter udp port 53 -o f.o --function data --name is_dns --header is_dns.h
  bpf-opt filter --read in.pcap 'host 10.0.0.1' -w out.pcap
  bpf-opt filter --read in.pcapng.gz icmp --count
  bpf-opt filter --read in.pcap 'tcp port 80 or host 10.0.0.1' --report      which part let a packet in
  bpf-opt filter -ddd 'udp port 53'                      numbers for xt_bpf, SO_ATTACH_FILTER, dumpcap
  bpf-opt filter 'host $BAD' --set BAD=addresses.txt -o f.o --hook xdp
  bpf-opt filter 'host $BAD' --set BAD=addresses.txt --updatable BAD --map-contents bad.batch -o f.o --hook xdp
  bpf-opt filter --dialect modern 'vxlan 5 (tcp port 80) and host 10.0.0.1' --read in.pcap
  bpf-opt filter --dialect modern 'vlan 5 and tcp port 80' -o f.o --hook tc
  bpf-opt filter 'host 10.0.0.1 and port 80' --profile typical.pcap -o f.o --hook xdp
  bpf-opt filter tcp --emit cfg | dot -Tsvg > tcp.svg     what is tested; also ast, ir, asm, stats

What is in the packet is read as libpcap's code reads it before its optimizer: a packet that ends before a
field is rejected where that code would read the field. At a hook `len` is the packet's captured length.
A socket gets --snaplen bytes of a packet that passes.

Exit codes: 0 done; 2 no such filter, or a file that cannot be read or written; 3 no right to use the kernel.";

/// `bpf-opt filter`.
#[derive(Debug, Args)]
pub struct FilterArgs {
    /// The filter; its words may be separate arguments. Empty: all packets
    #[arg(value_name = "EXPR")]
    pub expression: Vec<String>,

    /// Read the filter from this file
    #[arg(short = 'F', value_name = "FILE", conflicts_with = "expression")]
    pub file: Option<PathBuf>,

    /// What packets begin with, as a name of libpcap's (EN10MB, RAW, LINUX_SLL …) or a DLT number [default: that of the
    /// capture; EN10MB]
    #[arg(short = 'y', long, value_name = "TYPE")]
    pub link_type: Option<String>,

    /// What the words of the filter mean
    #[arg(long, value_enum, default_value_t = DialectArg::Libpcap)]
    pub dialect: DialectArg,

    /// The hook of the kernel that the eBPF is for
    #[arg(long, value_enum)]
    pub hook: Option<HookArg>,

    /// Where the object is written (`-`: standard output)
    #[arg(short, long, value_name = "OUT.o")]
    pub output: Option<PathBuf>,

    /// What becomes of packets that match: `pass`, `drop`, or the number that the program returns; the others get the
    /// opposite (with a number: pass) [default: pass]
    #[arg(long = "match", value_name = "ACTION", allow_hyphen_values = true)]
    pub action: Option<String>,

    /// Make a function to link into programs of yours (`bpftool gen object`). It returns 1 for what matches, 0 for the rest
    #[arg(long, value_enum, value_name = "ARGUMENTS")]
    pub function: Option<FunctionArg>,

    /// What the function is called [default: filter]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    /// Write a C header that declares the function
    #[arg(long, value_name = "OUT.h")]
    pub header: Option<PathBuf>,

    /// Print classic BPF: -d a listing, -dd C initializers, -ddd numbers. For an interface, as `tcpdump -y TYPE -d` prints it;
    /// with --hook socket for a socket of Linux, where a VLAN tag may stand beside the packet
    #[arg(short = 'd', action = ArgAction::Count)]
    pub dump: u8,

    /// Print a form of the filter
    #[arg(long, value_enum, value_name = "FORM")]
    pub emit: Option<Emit>,

    /// Translate the filter as it stands
    #[arg(long)]
    pub no_optimize: bool,

    /// Make the filter fast for packets like those of this capture. What it accepts stays the same
    #[arg(long, value_name = "CAPTURE", conflicts_with = "no_optimize")]
    pub profile: Option<PathBuf>,

    /// Which parts of the optimizer run: `all`, `none`, or of lists, predicates, checks, order, copies, trees, tables those
    /// named, separated by commas [default: all]
    #[arg(long, value_name = "PASSES", value_parser = passes, conflicts_with = "no_optimize")]
    pub passes: Option<Passes>,

    /// What classic BPF is to have little of [default: size]
    #[arg(long, value_enum)]
    pub goal: Option<GoalArg>,

    /// What is accepted of a packet, in bytes; 0 is the default [default: what the capture has at most of a packet; 262144]
    #[arg(long, value_name = "BYTES")]
    pub snaplen: Option<u32>,

    /// Run the filter on this capture: pcap or pcapng, plain or gzipped (`-`: standard input)
    #[arg(short, long, value_name = "IN.pcap", conflicts_with_all = ["hook", "function", "output", "dump", "emit"])]
    pub read: Option<PathBuf>,

    /// Write the packets that match (`-`: standard output)
    #[arg(short, long, value_name = "OUT.pcap")]
    pub write: Option<PathBuf>,

    /// With --read: print how many packets match. With --hook: the program counts packets and bytes, by processor, in the
    /// map `counters` (0: not matched, 1: matched)
    #[arg(long)]
    pub count: bool,

    /// Count in which predicate of the filter the ways of packets end. With --read: print it. With --hook: the program counts in
    /// the map `report`, whose elements are printed
    #[arg(long, conflicts_with_all = ["function", "dump", "verdicts"])]
    pub report: bool,

    /// Print a line for each packet: what of it is accepted in bytes, 0 if it does not match
    #[arg(long, conflicts_with = "count")]
    pub verdicts: bool,

    /// What runs the filter [default: jit]
    #[arg(long, value_enum)]
    pub engine: Option<Engine>,

    /// A name for the lines of a file, used as `$NAME` where an address, a network or a port may stand (repeatable)
    #[arg(long, value_name = "NAME=FILE")]
    pub set: Vec<String>,

    /// This set (--set) becomes a map of the object, which user space changes while the program runs. KIND says what its keys
    /// are, if its entries do not: ipv4, ipv4-net, ipv6, ipv6-net, mac, port (repeatable)
    #[arg(long, value_name = "NAME[:KIND,…]", conflicts_with = "dump")]
    pub updatable: Vec<String>,

    /// How many elements such a map takes [default: 1024, or twice the lines of the set]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MOST_ELEMENTS))]
    pub max_entries: Option<u32>,

    /// Write the lines of such sets for `bpftool batch file FILE`: an object cannot hold them
    #[arg(long, value_name = "FILE")]
    pub map_contents: Option<PathBuf>,

    /// The interface's network mask, for `ip broadcast`
    #[arg(long, value_name = "ADDRESS")]
    pub netmask: Option<std::net::Ipv4Addr>,

    /// Ask the resolver for hosts that no file names
    #[arg(long)]
    pub resolve: bool,

    /// Names of ports [default: /etc/services]
    #[arg(long, value_name = "FILE")]
    pub services: Option<PathBuf>,

    /// Names of IP protocols [default: /etc/protocols]
    #[arg(long, value_name = "FILE")]
    pub protocols: Option<PathBuf>,

    /// Names of Ethernet addresses [default: /etc/ethers]
    #[arg(long, value_name = "FILE")]
    pub ethers: Option<PathBuf>,

    /// Names of networks [default: /etc/networks]
    #[arg(long, value_name = "FILE")]
    pub networks: Option<PathBuf>,

    /// Names of hosts [default: /etc/hosts]
    #[arg(long, value_name = "FILE")]
    pub hosts: Option<PathBuf>,
}

/// More elements no map of an object has: BTF says the number as the length of an array of `int` (`btf_array_check_member` and
/// `btf_array_resolve` of kernel/bpf/btf.c), whose bytes are counted by 32 bits.
const MOST_ELEMENTS: i64 = u32::MAX as i64 / 4;

/// The passes of a list.
fn passes(text: &str) -> Result<Passes, String> {
    let named = |name: &str| {
        let names = || Pass::ALL.map(Pass::name).join(", ");
        Pass::of_name(name.trim()).ok_or_else(|| format!("no pass is called {name:?}; there are {}", names()))
    };
    match text.trim() {
        "all" => Ok(Passes::default()),
        "none" => Ok(Passes::of([])),
        list => {
            let all = list.split(',').map(named).collect::<Result<Vec<Pass>, String>>()?;
            match all.iter().enumerate().find(|(i, pass)| all[..*i].contains(pass)) {
                Some((_, pass)) => Err(format!("{} is named twice", pass.name())),
                None => Ok(Passes::of(all)),
            }
        }
    }
}

/// What the words of a filter mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DialectArg {
    /// What they mean to tcpdump
    Libpcap,
    /// More: TCP, UDP, ports behind IPv6 extension headers; all of it behind VLAN tags; `vxlan 5 (…)`, `geneve (…)`, `gre (…)`
    Modern,
}

impl From<DialectArg> for Dialect {
    fn from(dialect: DialectArg) -> Dialect {
        match dialect {
            DialectArg::Libpcap => Dialect::Libpcap,
            DialectArg::Modern => Dialect::Modern,
        }
    }
}

/// Hooks that objects are written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum HookArg {
    /// The driver, before the kernel has seen the packet
    Xdp,
    /// A classifier at ingress or egress, direct action
    Tc,
    /// A control group; packets begin with the IP header
    CgroupSkb,
    /// A socket (SO_ATTACH_BPF); the program returns how many bytes of the packet it gets
    Socket,
}

impl From<HookArg> for Hook {
    fn from(hook: HookArg) -> Hook {
        match hook {
            HookArg::Xdp => Hook::Xdp,
            HookArg::Tc => Hook::Tc,
            HookArg::CgroupSkb => Hook::CgroupSkb,
            HookArg::Socket => Hook::Socket,
        }
    }
}

/// What a function is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FunctionArg {
    /// `NAME(void *data, void *data_end)`: hidden, verified with its caller; for any hook that reads packets directly
    Data,
    /// `NAME(struct xdp_md *ctx)`, or `struct __sk_buff *`, as --hook has it: global, verified alone
    Ctx,
}

/// Forms of a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Emit {
    /// The tree of the text, with the qualifiers that ids inherit
    Ast,
    /// What is tested, as a graph for `dot -Tsvg`; with --no-optimize as the text has it
    Cfg,
    /// What the interpreter runs
    Ir,
    /// eBPF assembly for --hook and --function (XDP without)
    Asm,
    /// Sizes of all forms
    Stats,
}

/// Goals of classic programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GoalArg {
    /// Fewest instructions
    Size,
    /// Fewest instructions executed, in at most 1.3 times as many
    Latency,
}

/// What runs a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// Machine code, on x86-64; elsewhere the interpreter
    Jit,
    /// The interpreter
    Interpreter,
    /// The running kernel: the eBPF form, by test runs of packets of 14 to about 3,500 bytes
    Kernel,
}
