//! Several forms of one program, to be timed beside each other: built in, and made of an object.

use std::path::Path;
use std::time::Duration;

use bpf_assembly::{Map, Surroundings, functions, object};
use bpf_driver::{Costs, Goal, Options, PassSelection, Silent};

use crate::failure::Failure;
use crate::files;

/// Forms of the programs of one object.
pub struct Forms {
    /// The file, or the name of what is built in.
    pub name: String,
    /// What was done to make each.
    pub made_by: Vec<&'static str>,
    /// Each as an object.
    pub objects: Vec<Vec<u8>>,
    /// What they are run on; `None`: made inputs.
    pub packets: Option<Vec<Vec<u8>>>,
}

/// A packet of zeros and a few other bytes.
fn packet() -> Vec<u8> {
    (0..128).map(|i| if i % 3 == 0 { i } else { 0 }).collect()
}

/// The programs that come with this one.
pub fn built_in() -> Result<Vec<Forms>, Failure> {
    let text: String =
        include_str!("forms.txt").lines().filter(|l| !l.starts_with('#')).map(|l| format!("{l}\n")).collect();
    text.split("\n== ").skip(1).map(one_built_in).collect()
}

fn one_built_in(text: &str) -> Result<Forms, Failure> {
    let (name, listings) = text.split_once('\n').unwrap_or((text, ""));
    let bug = |e: String| Failure::internal(format!("{name}: {e}"));
    let map = |name: &str, map_type: u32, key_size: u32| Map {
        name: name.to_owned(),
        map_type,
        key_size,
        value_size: 16,
        max_entries: if key_size == 4 { 1 } else { 1024 },
        ..Map::default()
    };
    let maps = vec![map("hash", bpf_platform::maps::HASH, 8), map("array", bpf_platform::maps::ARRAY, 4)];
    let around = Surroundings { section: "tc".to_owned(), maps, ..Surroundings::default() };
    let form = |listing: &str| {
        let functions = functions(&unrolled(listing), "tc").map_err(|e| bug(e.to_string()))?;
        object(&around, &functions).map_err(|e| bug(e.to_string()))
    };
    let objects = listings.split("\n--\n").map(form).collect::<Result<Vec<_>, _>>()?;
    let names = ["form 1", "form 2", "form 3", "form 4"];
    Ok(Forms {
        name: name.to_owned(),
        made_by: names[..objects.len()].to_vec(),
        objects,
        packets: Some(vec![packet()]),
    })
}

/// The text with what stands between `repeat N` and `end` N times.
fn unrolled(listing: &str) -> String {
    let mut parts = listing.split("repeat ");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (count, rest) = part.split_once('\n').unwrap_or((part, ""));
        let (again, after) = rest.split_once("\nend\n").unwrap_or((rest, ""));
        out.push_str(&format!("{again}\n").repeat(count.parse().unwrap_or(1)));
        out.push_str(after);
    }
    out
}

/// What is made of an object: as it is, by rules, by a search for less slots, and by one for less time by this table.
pub fn of_object(path: &Path, costs: &'static Costs, program_type: Option<&String>) -> Result<Forms, Failure> {
    let bytes = files::read(path)?;
    let mut forms = Forms {
        name: path.display().to_string(),
        made_by: vec!["as it is"],
        objects: vec![bytes.clone()],
        packets: None,
    };
    let time_limit = Duration::from_secs(5);
    let program_type = program_type.cloned();
    let plain = Options { program_type, run_check: false, costs, time_limit, ..Options::default() };
    let latency = Options { goal: Goal::Latency(costs), ..plain.clone() };
    let rounds = |options: Options| Options { rounds: Some(2), search: true, ..options };
    let ways: [(&'static str, Options); 5] = [
        ("simple passes", Options { passes: PassSelection::Only(SIMPLE.map(str::to_owned).to_vec()), ..plain.clone() }),
        ("-O1", plain.clone().at_level(1)),
        ("-O2", plain.at_level(2)),
        ("rules, latency", latency.clone().at_level(1)),
        ("search, latency", rounds(latency)),
    ];
    for (made_by, options) in ways {
        let made = bpf_driver::optimize(&bytes, &options, &Silent).map_err(|e| Failure::driver(path, &e))?;
        if !forms.objects.contains(&made.0) {
            forms.made_by.push(made_by);
            forms.objects.push(made.0);
        }
    }
    Ok(forms)
}

/// Passes that leave most as it is.
const SIMPLE: [&str; 3] = ["constants", "delete", "copies"];
