//! `bpf-opt guest`: the first process of a machine that `kernels load` has booted. It loads what it finds, says what the
//! kernel said, and switches the machine off.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use bpf_kernel::{LoadOptions, Loader, Question};
use rustix::mount::{MountFlags, mount};
use rustix::system::{RebootCommand, reboot};
use serde::{Deserialize, Serialize};

use crate::args::GuestArgs;
use crate::failure::{Failure, exit};
use crate::files;
use crate::load;

/// Where the objects are, each called by its number.
pub const OBJECTS: &str = "/objects";
/// What begins a line of answer on the console, where firmware and kernel may print, too.
pub const MARK: &str = "bpf-opt guest: ";
/// What an object may take the kernel.
const LIMIT: Duration = Duration::from_secs(60);
/// What has to be there for libbpf: (name, where, kind).
const MOUNTS: [(&str, &str, &str); 5] = [
    ("proc", "/proc", "proc"),
    ("sys", "/sys", "sysfs"),
    ("dev", "/dev", "devtmpfs"),
    ("bpf", "/sys/fs/bpf", "bpf"),
    ("tracefs", "/sys/kernel/tracing", "tracefs"),
];

/// What a kernel says of one object.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Answer {
    /// The number of the object.
    pub object: usize,
    /// The kernel's release.
    pub release: String,
    /// Why it could not be asked.
    pub error: Option<String>,
    /// Why the object as a whole does not load.
    pub not_loadable: Option<String>,
    /// Each program.
    pub programs: Vec<Judged>,
}

/// What a kernel says of one program; docs/json.md describes the fields.
#[derive(Debug, Serialize, Deserialize)]
pub struct Judged {
    pub name: String,
    pub section: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub slots: usize,
    pub verdict: String,
    pub reason: Option<String>,
    pub processed: Option<u64>,
    pub xlated_bytes: Option<u32>,
    pub jited_bytes: Option<u32>,
}

impl Answer {
    /// Whether the kernel takes all of it.
    pub fn is_accepted(&self) -> bool {
        self.error.is_none() && self.not_loadable.is_none() && self.programs.iter().all(Judged::is_accepted)
    }
}

impl Judged {
    /// Whether the kernel takes it.
    pub fn is_accepted(&self) -> bool {
        self.verdict == load::verdict(&bpf_kernel::LoadVerdict::Accepted)
    }
}

/// Runs the command; in the guest, it does not return.
pub fn run(args: &GuestArgs) -> Result<u8, Failure> {
    if std::process::id() != 1 {
        let failure = Failure::bad_input("`guest` runs as the first process of a machine, and switches it off");
        return Err(failure.with_hint("`bpf-opt kernels load` boots one"));
    }
    answer_all(args);
    // Else the kernel panics as its first process ends, which stops the machine, too.
    let _ = reboot(RebootCommand::Restart);
    Ok(exit::UNKNOWN)
}

fn answer_all(args: &GuestArgs) {
    // Who has booted this waits for a sign of life, and nobody else is there to be told that it was not sent.
    let _ = files::print(&format!("{MARK}\n"));
    for (name, place, kind) in MOUNTS {
        // What is missing then shows where it is needed: not every kernel has all of them.
        let _ = fs::create_dir_all(place)
            .and_then(|()| mount(name, place, kind, MountFlags::empty(), None).map_err(std::io::Error::from));
    }
    let mut numbers: Vec<usize> = fs::read_dir(OBJECTS)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    for object in numbers {
        let release = bpf_kernel::release();
        let answer = match judge(object, args) {
            Ok(answer) => Answer { object, release, ..answer },
            Err(why) => Answer { object, release, error: Some(why), ..Answer::default() },
        };
        if let Ok(text) = serde_json::to_string(&answer) {
            let _ = files::print(&format!("{MARK}{text}\n"));
        }
    }
}

fn judge(object: usize, args: &GuestArgs) -> Result<Answer, String> {
    let bytes = fs::read(Path::new(OBJECTS).join(object.to_string())).map_err(|e| e.to_string())?;
    // One for each, so that what one object leaves open is not what another one finds.
    let mut loader =
        Loader::new(LoadOptions { program_type: args.program_type.clone(), only: None }).map_err(|e| e.to_string())?;
    let verdict = loader
        .judge(&bytes, |_, _| Question::AsDefined, Instant::now().checked_add(LIMIT))
        .map_err(|e| e.to_string())?;
    let programs = verdict.programs.iter().map(|p| Judged {
        name: p.name.clone(),
        section: p.section.clone(),
        kind: p.kind.to_string(),
        slots: p.slots,
        verdict: load::verdict(&p.verdict).to_owned(),
        reason: Some(p.verdict.reason().to_owned()).filter(|r| !r.is_empty()),
        processed: p.stats.as_ref().map(|s| s.processed),
        xlated_bytes: p.info.map(|i| i.xlated_bytes),
        jited_bytes: p.info.map(|i| i.jited_bytes),
    });
    Ok(Answer { not_loadable: verdict.not_loadable, programs: programs.collect(), ..Answer::default() })
}
