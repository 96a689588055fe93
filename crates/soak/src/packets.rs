//! Lane `packets`: original against optimized objects in the kernel, with `bpf_driver::difftest`.
//!
//! Each object is optimized once, by whichever worker gets to it first; a unit is about 500 packets of one object,
//! shared among its programs.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bpf_driver::difftest::{Pair, Random, Setup};
use bpf_driver::{Options, Silent, optimize};

use crate::{Lane, Tally};

/// Packets of a unit.
const PACKETS: usize = 500;
/// Fewest packets of a round.
const ROUND: usize = 20;
/// Time to optimize an object.
const LIMIT: Duration = Duration::from_secs(4);
/// Larger objects are left out: optimizing them would take most of the campaign.
const LARGEST: u64 = 2 << 20;

/// An object with its optimized form, once that is made.
pub struct Subject {
    name: String,
    original: Vec<u8>,
    optimized: OnceLock<Result<Vec<u8>, String>>,
}

/// The lane.
pub struct Packets {
    subjects: Arc<Vec<Subject>>,
    pairs: HashMap<usize, Pair>,
    /// Where optimized objects that behave differently are kept.
    keep: Option<PathBuf>,
}

/// Objects of the repository, of the benchmarks where they are there, and of the folders that the environment
/// variable `BPF_OPT_OBJECTS` names (separated by colons).
pub fn folders() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let usual = ["examples", "../shared/bench/k2", "../shared/bench/public"].map(|d| root.join(d));
    let more = std::env::var_os("BPF_OPT_OBJECTS").unwrap_or_default();
    usual.into_iter().chain(std::env::split_paths(&more)).filter(|p| !p.as_os_str().is_empty()).collect()
}

/// The objects in these folders that load here and have a program to run.
pub fn subjects(folders: &[PathBuf]) -> Vec<Subject> {
    let files = folders.iter().flat_map(|d| std::fs::read_dir(d).into_iter().flatten().flatten());
    let mut paths: Vec<PathBuf> = files
        .filter(|e| e.metadata().is_ok_and(|m| m.len() <= LARGEST))
        .map(|e| e.path())
        .filter(|p| p.extension().is_some_and(|e| e == "o"))
        .collect();
    paths.sort();
    paths
        .iter()
        .filter_map(|path| {
            let original = std::fs::read(path).ok()?;
            let pair = Pair::load(&original, &original, Setup::default()).ok()?;
            pair.programs().next()?;
            let name = path.file_name()?.to_string_lossy().into_owned();
            Some(Subject { name, original, optimized: OnceLock::new() })
        })
        .collect()
}

impl Subject {
    /// A pair of objects that somebody else made.
    pub fn given(name: &str, original: Vec<u8>, optimized: Vec<u8>) -> Subject {
        Subject { name: name.to_owned(), original, optimized: OnceLock::from(Ok(optimized)) }
    }

    fn optimized(&self) -> Result<&[u8], String> {
        let make = || {
            let options = Options { time_limit: LIMIT, search: true, ..Options::default() };
            optimize(&self.original, &options, &Silent).map(|(bytes, _)| bytes).map_err(|e| e.to_string())
        };
        self.optimized.get_or_init(make).as_deref().map_err(Clone::clone)
    }
}

impl Packets {
    /// The lane over these objects.
    ///
    /// # Errors
    /// Why it cannot run here.
    pub fn new(subjects: Arc<Vec<Subject>>, keep: Option<PathBuf>) -> Result<Packets, String> {
        bpf_kernel::permitted().require().map_err(|e| e.to_string())?;
        if subjects.is_empty() {
            return Err("no object here has a program that this kernel loads and runs".to_owned());
        }
        Ok(Packets { subjects, pairs: HashMap::new(), keep })
    }

    /// The pair in the kernel, loaded once.
    fn pair(&mut self, which: usize) -> Result<&mut Pair, String> {
        if !self.pairs.contains_key(&which) {
            let subject = &self.subjects[which];
            let pair = Pair::load(&subject.original, subject.optimized()?, Setup::default())
                .map_err(|e| format!("{}: {e}", if e.second { "the optimized object" } else { "the original" }))?;
            self.pairs.insert(which, pair);
        }
        self.pairs.get_mut(&which).ok_or_else(|| "not loaded".to_owned())
    }

    fn kept(&self, subject: &Subject, index: u64) -> String {
        let (Some(folder), Ok(bytes)) = (&self.keep, subject.optimized()) else { return String::new() };
        let path = folder.join(format!("{index}-{}", subject.name));
        match std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, bytes)) {
            Ok(()) => format!("\nthe optimized object is {}", path.display()),
            Err(e) => format!("\nthe optimized object could not be kept: {e}"),
        }
    }
}

impl Lane for Packets {
    fn name(&self) -> &'static str {
        "packets"
    }

    fn unit(&mut self, seed: u64, index: u64, tally: &mut Tally) {
        let subjects = Arc::clone(&self.subjects);
        let which = (index % subjects.len() as u64) as usize;
        let subject = &subjects[which];
        let mut r = Random::of(seed ^ 0xbac4e7, index);
        let pair = match self.pair(which) {
            Ok(pair) => pair,
            Err(why) => return tally.disagree(seed, index, format!("{}: {why}", subject.name)),
        };
        let mut programs: Vec<String> = pair.programs().map(str::to_owned).collect();
        let first = r.below(programs.len() as u64) as usize;
        programs.rotate_left(first);
        programs.truncate(PACKETS / ROUND);
        let mut differences = Vec::new();
        for program in &programs {
            let round = pair.round(program, &mut r, PACKETS / programs.len(), None);
            tally.count("packets", round.runs);
            tally.count("packets the kernel would not run", round.refused);
            tally.count("rounds", 1);
            tally.count("unsteady rounds", round.unsteady);
            tally.count("rounds that differ, perhaps not always", round.open.is_some().into());
            differences.extend(round.difference);
        }
        for d in differences {
            let kept = self.kept(subject, index);
            let what = d.what.join("; ");
            let context = d.context.map_or(String::new(), |c| format!("\ncontext {c}"));
            let text = format!(
                "{}: {}: {what}\nrun {}, packet {}{context}{kept}",
                subject.name, d.program, d.number, d.packet
            );
            tally.disagree(seed, index, text);
        }
    }
}
