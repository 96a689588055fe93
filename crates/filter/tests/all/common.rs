//! What tests of filters share.

use std::io::Write;

use bpf_capture::link;
use bpf_filter::{Beside, Classic, ClassicGoal, Filter, Form, Hook, Jit, JitError, LinkType, Options, Packet};
use bpf_pcap_oracle::data::{Data, OwnedPacket};
use bpf_pcap_oracle::library::Savefile;
use bpf_pcap_oracle::program::Instruction;
use bpf_pcap_oracle::{Libpcap, Program, interpreter};

/// How filters are compiled here: with the mask that the oracle is given, too.
pub fn options(link_type: LinkType) -> Options {
    Options { link_type, netmask: Some(0xffff_ff00), ..Options::default() }
}

/// The mask for the oracle. libpcap 1.10 takes the number as it is.
pub const NETMASK: u32 = 0xffff_ff00;

/// The packet, whole and cut at three places.
pub fn cuts(packet: &OwnedPacket, i: usize) -> impl Iterator<Item = Packet<'_>> {
    let whole = packet.captured.len();
    let cuts = [whole, whole / 2, (i * 7919) % (whole + 1), (i * 104_729) % (whole.min(70) + 1)];
    cuts.into_iter().map(|cut| Packet {
        captured: &packet.captured[..cut],
        length: packet.length,
        beside: Beside::default(),
    })
}

/// Names that only libpcap's own test machine knows.
pub fn needs_names(expression: &str) -> bool {
    expression.to_ascii_lowercase().contains("libpcap.test")
}

/// A packet as a test run takes it. The kernel takes a link header away before a socket's program sees the packet.
pub fn handed(hook: Hook, captured: &[u8]) -> Vec<u8> {
    let taken: &[u8] = if hook == Hook::Socket { &[0; 14] } else { &[] };
    [taken, captured].concat()
}

/// What packets begin with at a hook.
pub fn link_type(hook: Hook) -> LinkType {
    if hook == Hook::CgroupSkb { LinkType::RAW } else { LinkType::EN10MB }
}

/// What a hook's program sees of an Ethernet packet.
pub fn seen(hook: Hook, captured: &[u8]) -> &[u8] {
    if hook == Hook::CgroupSkb { captured.get(14..).unwrap_or_default() } else { captured }
}

/// All filters of the folder for a link type, of libpcap's every so-manieth.
pub fn expressions(data: &Data, link_type: LinkType, step: usize) -> Vec<String> {
    let mut all: Vec<String> = data.filters().into_iter().map(|f| f.expression).collect();
    let of_link = |dlt: &str| LinkType::of_name(dlt) == Some(link_type);
    all.extend(data.accept().into_iter().filter(|r| of_link(&r.dlt)).flat_map(|r| r.aliases).step_by(step));
    all.retain(|e| !needs_names(e) && !e.starts_with("_enumerate"));
    all
}

/// All forms that are proven.
pub fn forms() -> [Form; 5] {
    let goals = [ClassicGoal::Size, ClassicGoal::Time].map(Form::Classic);
    [Form::Here, Form::Machine, Form::Kernel, goals[0], goals[1]]
}

/// The filter as machine code, where there is a translator.
pub fn machine_code(filter: &Filter) -> Option<Jit> {
    match filter.jit() {
        Err(JitError::Machine) => None,
        jit => Some(jit.unwrap_or_else(|e| panic!("{e}"))),
    }
}

/// The program as the oracle has programs.
pub fn oracle_form(instructions: &[Classic]) -> Program {
    let of = |c: &Classic| Instruction { code: c.code, jt: c.jt, jf: c.jf, k: c.k };
    Program { instructions: instructions.iter().map(of).collect() }
}

/// A file without packets, for libpcap to compile as it does for files.
fn empty_file(dlt: u16) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().expect("a place for temporary files");
    let words = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 262_144, u32::from(link::of_dlt(dlt))];
    file.write_all(&words.map(u32::to_ne_bytes).concat()).expect("room for 24 bytes");
    file
}

/// libpcap's code of an expression for files, before its optimizer.
pub fn by_libpcap(pcap: &Libpcap, dlt: u16, expression: &str) -> Result<Program, String> {
    let file = empty_file(dlt);
    let mut handle: Savefile = pcap.open(file.path())?;
    handle.compile(expression, false, NETMASK)
}

/// Instructions that a classic program executes over packets.
pub fn executed(program: &Program, packets: &[OwnedPacket]) -> u64 {
    packets.iter().map(|p| interpreter::run(program, &p.captured, p.length).executed).sum()
}
