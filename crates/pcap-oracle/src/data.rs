//! The data of `../shared/filter`, as its `README.md` describes them: expressions, verdicts, captures. Nothing of it is
//! part of the project; tests that need it are skipped where the folder is not there.

use std::fs;
use std::path::{Path, PathBuf};

use bpf_capture::{Capture, Error, Timestamp, link};
use serde::Deserialize;

use crate::listing;
use crate::program::Program;

/// The folder, beside the project's.
#[derive(Clone, Debug)]
pub struct Data {
    folder: PathBuf,
}

/// An expression that libpcap's own tests compile, from `accept.jsonl`.
#[derive(Clone, Debug, Deserialize)]
pub struct Accept {
    /// Name of the `DLT_` number ([`crate::Libpcap::dlt`]).
    #[serde(rename = "DLT")]
    pub dlt: String,
    /// The test's name.
    pub name: String,
    /// Expressions, all of which give the same code.
    pub aliases: Vec<String>,
    opt: Option<String>,
    unopt: Option<String>,
    optunopt: Option<String>,
    /// Snapshot length in bytes, where it is not [`Accept::SNAPSHOT`].
    pub snaplen: Option<u32>,
    /// IPv4 netmask, as four numbers with points.
    pub netmask: Option<String>,
    #[serde(default)]
    linuxext: u8,
    /// `unswapped` or `swapped`, if the code is for a capture file of that byte order.
    pub generate_offline_filter: Option<String>,
    /// Why libpcap's tests leave it out on some systems.
    pub skip: Option<String>,
}

/// An expression and what it makes of each packet of a savefile, from `apply.jsonl`.
#[derive(Clone, Debug, Deserialize)]
pub struct Apply {
    /// The test's name.
    pub name: String,
    /// The expression.
    pub expr: String,
    /// The capture's name, for [`Data::savefile`].
    pub savefile: String,
    /// For each packet the accepted length, or 0.
    pub results: Vec<u32>,
    /// Why libpcap's tests leave it out on some systems.
    pub skip: Option<String>,
}

/// An expression that libpcap refuses, from `reject.jsonl`.
#[derive(Clone, Debug, Deserialize)]
pub struct Reject {
    /// Name of the `DLT_` number.
    #[serde(rename = "DLT")]
    pub dlt: String,
    /// The test's name.
    pub name: String,
    /// The expression.
    pub expr: String,
    /// The message, or `<a placeholder>` for it.
    pub errstr: String,
    /// IPv4 netmask, as four numbers with points.
    pub netmask: Option<String>,
    /// Why libpcap's tests leave it out on some systems.
    pub skip: Option<String>,
}

/// A filter that is measured, from `filters.tsv`; all are for Ethernet.
#[derive(Clone, Debug)]
pub struct Filter {
    /// Its name.
    pub name: String,
    /// The expression.
    pub expression: String,
}

/// A capture of the folder.
#[derive(Clone, Debug)]
pub struct CaptureFile {
    /// Where it is.
    pub path: PathBuf,
    /// The `LINKTYPE_` numbers of its packets.
    pub link_types: Vec<u16>,
    /// How many packets it has.
    pub packets: usize,
    /// How many of them were not captured as a whole.
    pub truncated: usize,
}

/// A packet that stands alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedPacket {
    /// The captured bytes.
    pub captured: Vec<u8>,
    /// Length on the wire, in bytes.
    pub length: u32,
    /// libpcap's number of the link type.
    pub dlt: u16,
    /// Whether the file has another byte order than this machine.
    pub swapped: bool,
    /// When it was captured.
    pub timestamp: Timestamp,
}

impl Accept {
    /// The snapshot length where none is given (libpcap's `MAXIMUM_SNAPLEN`), in bytes.
    pub const SNAPSHOT: u32 = 262_144;

    /// The snapshot length to compile with, in bytes.
    pub fn snapshot(&self) -> u32 {
        self.snaplen.unwrap_or(Self::SNAPSHOT)
    }

    /// Whether the code may load what only Linux knows of a packet.
    pub fn linux_extensions(&self) -> bool {
        self.linuxext != 0
    }

    /// The code that libpcap 1.11 makes with its optimizer. Nothing if the optimizer says that the expression rejects
    /// all packets, or the record has no code.
    ///
    /// # Panics
    /// If the record holds no listing.
    pub fn optimized(&self) -> Option<Program> {
        self.program(self.opt.as_ref())
    }

    /// The code that libpcap 1.11 makes without it. Nothing if the record has none.
    ///
    /// # Panics
    /// If the record holds no listing.
    pub fn unoptimized(&self) -> Option<Program> {
        self.program(self.unopt.as_ref())
    }

    /// Whether libpcap's optimizer refuses the expression, because it rejects all packets.
    pub fn rejects_all(&self) -> bool {
        self.optimized().is_none() && self.unoptimized().is_some()
    }

    fn program(&self, own: Option<&String>) -> Option<Program> {
        let text = own.or(self.optunopt.as_ref())?;
        let program = listing::parse(text).unwrap_or_else(|why| panic!("{}: {why}", self.name));
        (!program.instructions.is_empty()).then_some(program)
    }
}

impl Data {
    /// The folder, if it is there.
    pub fn find() -> Option<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/filter");
        folder.is_dir().then_some(Self { folder })
    }

    /// The folder for a test. Where it is missing, a message says that the test is skipped.
    pub fn for_test() -> Option<Self> {
        let found = Self::find();
        if found.is_none() {
            eprintln!("skipped: no folder ../shared/filter");
        }
        found
    }

    /// The expressions of `accept.jsonl`.
    ///
    /// # Panics
    /// If the file cannot be read; as all functions here.
    pub fn accept(&self) -> Vec<Accept> {
        self.records("accept.jsonl")
    }

    /// The verdicts of `apply.jsonl`.
    pub fn apply(&self) -> Vec<Apply> {
        self.records("apply.jsonl")
    }

    /// The expressions of `reject.jsonl`.
    pub fn reject(&self) -> Vec<Reject> {
        self.records("reject.jsonl")
    }

    /// The filters of `filters.tsv`.
    pub fn filters(&self) -> Vec<Filter> {
        let text = self.text("filters.tsv");
        let rows = text.lines().map(|line| line.split_once('\t').expect("name and expression"));
        rows.map(|(name, expression)| Filter { name: name.into(), expression: expression.into() }).collect()
    }

    /// A table of `figures/`: its rows as cells, the names of the columns first.
    pub fn figures(&self, name: &str) -> Vec<Vec<String>> {
        let text = self.text(&format!("figures/{name}"));
        text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
    }

    /// The capture that a record of [`Self::apply`] names.
    pub fn savefile(&self, name: &str) -> PathBuf {
        self.folder.join("savefiles").join(name)
    }

    /// The captures that `apply.jsonl` names, in the order of their names.
    pub fn savefiles(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.folder.join("savefiles")).expect("the folder");
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
        paths.sort();
        paths
    }

    /// The captures that `captures.tsv` lists.
    pub fn captures(&self) -> Vec<CaptureFile> {
        let text = self.text("captures.tsv");
        text.lines().skip(1).map(|line| self.capture(line)).collect()
    }

    /// The packets of all listed captures whose link type has this `DLT_` number; of a damaged capture those before the
    /// damage.
    pub fn packets(&self, dlt: u16) -> Vec<OwnedPacket> {
        let has = |file: &CaptureFile| file.link_types.iter().any(|link_type| link::dlt(*link_type) == dlt);
        let files = self.captures().into_iter().filter(has);
        let packets = files.flat_map(|file| read(&file.path).map_or_else(|_| Vec::new(), |(packets, _)| packets));
        packets.filter(|packet| packet.dlt == dlt).collect()
    }

    fn capture(&self, line: &str) -> CaptureFile {
        let cells: Vec<&str> = line.split('\t').collect();
        let number = |at: usize| cells[at].parse().expect("a number");
        let link_types = cells[2].split('+').filter(|cell| !cell.is_empty());
        CaptureFile {
            path: self.folder.join("captures").join(cells[0]),
            link_types: link_types.map(|cell| cell.parse().expect("a link type")).collect(),
            packets: number(3),
            truncated: number(4),
        }
    }

    fn text(&self, name: &str) -> String {
        let path = self.folder.join(name);
        fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
    }

    fn records<T: for<'de> Deserialize<'de>>(&self, name: &str) -> Vec<T> {
        let text = self.text(name);
        let parsed = |line| serde_json::from_str(line).unwrap_or_else(|why| panic!("{name}: {why}: {line}"));
        text.lines().map(parsed).collect()
    }
}

/// The packets of a capture, and the error that ended it, if one did.
///
/// # Errors
/// If it cannot be opened.
pub fn read(path: &Path) -> Result<(Vec<OwnedPacket>, Option<Error>), Error> {
    let mut capture = Capture::open(path)?;
    let mut packets = Vec::new();
    loop {
        match capture.next_packet() {
            Ok(Some(packet)) => packets.push(OwnedPacket {
                captured: packet.captured.to_vec(),
                length: packet.length,
                dlt: link::dlt(packet.link_type),
                swapped: packet.swapped,
                timestamp: packet.timestamp,
            }),
            Ok(None) => return Ok((packets, None)),
            Err(why) => return Ok((packets, Some(why))),
        }
    }
}
