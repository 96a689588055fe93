//! Reading the programs in `tests/verifier`, and asking the kernel about them.

use std::path::{Path, PathBuf};

use bpf_check::{MapInfo, Program, is_gpl};
use bpf_isa::{Imm64Kind, Insn, encode_all, parse_listing};
use bpf_kernel::{Map, ProgramType, RawOptions, RawProgram};

/// A program with what its header says.
pub struct Fixture {
    pub name: String,
    /// A part of the kernel's log.
    pub reason: String,
    pub insns: Vec<Insn>,
    pub kind: (ProgramType, u32),
    pub maps: Vec<MapInfo>,
    pub license: String,
}

/// The project's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All programs of a folder of `tests/verifier`.
pub fn fixtures(folder: &str) -> Vec<Fixture> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(root().join("tests/verifier").join(folder))
        .expect("the folder is there")
        .map(|e| e.expect("an entry").path())
        .filter(|p| p.extension().is_some_and(|e| e == "s"))
        .collect();
    files.sort();
    files.iter().map(|p| Fixture::read(p)).collect()
}

impl Fixture {
    fn read(path: &Path) -> Fixture {
        let text = std::fs::read_to_string(path).expect("readable");
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let header = |key: &str| {
            let prefix = format!("; {key}:");
            text.lines().filter_map(move |l| l.strip_prefix(&prefix).map(|v| v.trim().to_owned())).collect::<Vec<_>>()
        };
        let one = |key: &str| header(key).into_iter().next();
        let section = one("type").expect("a type");
        let kind = ProgramType::named(&section).unwrap_or_else(|e| panic!("{name}: {e}"));
        Fixture {
            insns: parse_listing(&text).unwrap_or_else(|e| panic!("{name}: {e}")),
            kind,
            maps: header("map").iter().map(|m| map(m)).collect(),
            license: one("license").unwrap_or_else(|| "GPL".to_owned()),
            reason: one("kernel").unwrap_or_default(),
            name,
        }
    }

    /// As this crate sees it.
    pub fn program(&self) -> Program {
        let (kind, attach) = self.kind;
        Program::of_insns(&self.insns, self.maps.clone(), kind.0, attach, is_gpl(&self.license))
    }

    /// Loads it, or gives the verifier's log.
    pub fn load(&self) -> Result<(), String> {
        let maps: Vec<Map> = self
            .maps
            .iter()
            .map(|m| {
                Map::create_with(m.kind, m.key_size, m.value_size, m.max_entries, m.flags, None)
                    .unwrap_or_else(|e| panic!("{}: {e}", self.name))
            })
            .collect();
        let with_fds: Vec<Insn> = self
            .insns
            .iter()
            .map(|insn| match *insn {
                Insn::LoadImm64 { dst, kind: Imm64Kind::MapFd, imm } => {
                    Insn::LoadImm64 { dst, kind: Imm64Kind::MapFd, imm: maps[imm as usize].fd() as u64 }
                }
                other => other,
            })
            .collect();
        let code = encode_all(&with_fds).expect("encodable");
        let options =
            RawOptions { license: self.license.clone(), expected_attach_type: self.kind.1, log_level: 1, flags: 0 };
        RawProgram::load(self.kind.0, &code, &options).map(|_| ()).map_err(|e| e.log)
    }
}

/// `type key value entries [flags]`.
fn map(text: &str) -> MapInfo {
    let words: Vec<&str> = text.split_whitespace().collect();
    let kind = match words[0] {
        "hash" => 1,
        "array" => 2,
        "prog_array" => 3,
        "perf_event_array" => 4,
        "ringbuf" => 27,
        other => panic!("no map type {other}"),
    };
    let number = |i: usize| words.get(i).map_or(0, |w| w.parse().expect("a number"));
    MapInfo {
        name: words[0].to_owned(),
        kind,
        key_size: number(1),
        value_size: number(2),
        max_entries: number(3),
        flags: number(4),
        ..MapInfo::default()
    }
}
