//! Another kernel than the one that runs, for whoever wants its verdicts: an image, booted under qemu when it is asked first.
//!
//! The one idea: the same question has the same answer, so that an answer is kept under the hash of all it hangs on (kernel,
//! this program, object, type), and a machine is booted only for what no one has asked before.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bpf_kernel::{LoadVerdict, ObjectVerdict, ProgramType, ProgramVerdict, VerifierStats};
use bpf_vm::{Accelerator, Guest, Image, Program, Session};
use sha2::{Digest, Sha256};

use crate::args::{OptArgs, default_answers, default_images};
use crate::failure::{Failure, exit};
use crate::files::{self, Destination};
use crate::guest::{self, Answer, Judged, MARK};

/// Memory of a guest, in MiB: room for the stack that this program reserves (`STACK` in `main.rs`), and as much again.
const MEMORY: u32 = 2048;
/// After so many questions in a row without an answer nothing is asked any more.
const PATIENCE: u32 = 3;
/// For a boot, and for a question of `opt`.
const LIMIT: Duration = Duration::from_secs(300);
/// The kernel's EINVAL.
const EINVAL: i32 = 22;

/// How machines are run, whatever kernel is in them.
#[derive(Debug, Clone)]
pub struct Ways {
    /// Where images are kept.
    pub images: Option<PathBuf>,
    /// What runs them.
    pub accelerator: Option<Accelerator>,
    /// For the boot, and for each question.
    pub limit: Duration,
    /// Where answers are kept.
    pub answers: Option<PathBuf>,
}

/// A kernel to be asked.
#[derive(Debug)]
pub struct OtherKernel {
    /// As the user called it.
    pub name: String,
    /// Its image.
    pub image: Image,
    program: Arc<Program>,
    ways: Ways,
    /// Kernel and program, as part of the hashes.
    both: [u8; 32],
    machine: Mutex<Life>,
}

/// A machine, if it runs.
#[derive(Debug, Default)]
struct Life {
    session: Option<Session>,
    /// Questions in a row without an answer.
    failures: u32,
}

impl OtherKernel {
    /// The kernels of these names, none of them booted.
    ///
    /// # Errors
    /// If a name means none or several, or an image cannot be read.
    pub fn named(names: &[String], ways: &Ways) -> Result<Vec<Arc<OtherKernel>>, Failure> {
        let images: Vec<Image> =
            names.iter().map(|name| named(ways.images.as_deref(), name)).collect::<Result<_, _>>()?;
        let program = Program::running()
            .map_err(|e| Failure::bad_input(format!("cannot find what this program consists of: {e}")))?;
        let program = Arc::new(program);
        let mine = Sha256::digest(program.bytes());
        let with = |(name, image): (&String, Image)| {
            let both = Sha256::new().chain_update(mine).chain_update(files::read(&image.path)?).finalize();
            Ok(Arc::new(OtherKernel {
                name: name.clone(),
                image,
                program: program.clone(),
                ways: ways.clone(),
                both: both.into(),
                machine: Mutex::default(),
            }))
        };
        names.iter().zip(images).map(with).collect()
    }

    /// Where the answer to a question is kept.
    fn place(&self, question: &[u8]) -> Option<PathBuf> {
        let hash = Sha256::new().chain_update(self.both).chain_update(question).finalize();
        Some(self.ways.answers.as_ref()?.join(hex::encode(hash) + ".json"))
    }

    /// Boots the machine, if it does not run: whoever knows that there will be questions need not wait for the first one.
    ///
    /// # Errors
    /// If there is no qemu, or the kernel does not come up.
    pub fn start(&self) -> Result<(), Failure> {
        self.with_session(|_| ())
    }

    fn with_session<T>(&self, f: impl FnOnce(&mut Life) -> T) -> Result<T, Failure> {
        let mut life = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        if life.session.is_none() {
            let guest = Guest {
                image: &self.image,
                program: &self.program,
                arguments: &["guest"],
                first_words: MARK,
                accelerator: self.ways.accelerator,
                memory: MEMORY,
                limit: self.ways.limit,
            };
            life.session = Some(guest.start().map_err(|e| {
                Failure {
                    code: exit::UNKNOWN,
                    message: e.to_string(),
                    hint: Some("kernels are booted with qemu-system-x86_64 (Debian: qemu-system-x86)".to_owned())
                        .filter(|_| !bpf_vm::is_available()),
                }
            })?);
        }
        Ok(f(&mut life))
    }

    /// What it says of an object, whose programs have this type if one is given.
    ///
    /// # Errors
    /// If the machine does not come up. That it does not answer is part of the answer.
    pub fn ask(&self, object: &[u8], program_type: Option<&str>) -> Result<Answer, Failure> {
        let question = guest::question(object, program_type).map_err(|e| Failure::bad_input(e.to_string()))?;
        let place = self.place(&question);
        if let Some(kept) = place.as_deref().and_then(read) {
            return Ok(kept);
        }
        let no = |why: String| Answer { error: Some(why), release: self.image.release.clone(), ..Answer::default() };
        // A machine that nobody has asked for long has stopped.
        for is_last in [false, true] {
            let said = self.with_session(|life| {
                let limit = self.ways.limit;
                if life.failures >= PATIENCE {
                    return Err(format!("it did not answer {PATIENCE} times and is not asked any more"));
                }
                let session = life.session.as_mut().ok_or("no machine")?;
                let said = session.ask(&question, limit).map_err(|e| e.to_string());
                let answer = said.and_then(|line| serde_json::from_str::<Answer>(&line).map_err(|e| e.to_string()));
                match &answer {
                    Ok(_) => life.failures = 0,
                    Err(_) => {
                        life.session = None;
                        life.failures += u32::from(is_last);
                    }
                }
                answer
            })?;
            match said {
                Ok(answer) => {
                    if let Some(place) = place.filter(|_| answer.is_final()) {
                        keep(&place, &answer);
                    }
                    return Ok(answer);
                }
                Err(why) if is_last => return Ok(no(why)),
                Err(_) => {}
            }
        }
        Ok(no("it did not answer".to_owned()))
    }

    /// Whether this was asked before, so that no machine is needed.
    pub fn knows(&self, object: &[u8], program_type: Option<&str>) -> bool {
        let question = guest::question(object, program_type).ok();
        question.and_then(|q| self.place(&q)).is_some_and(|place| place.exists())
    }
}

/// The kernels that `opt` has to ask, none of them booted.
///
/// # Errors
/// As [`OtherKernel::named`].
pub fn of(args: &OptArgs) -> Result<Vec<Arc<OtherKernel>>, Failure> {
    if args.kernels.is_empty() {
        return Ok(Vec::new());
    }
    let answers = default_answers().filter(|_| !args.no_cache);
    OtherKernel::named(&args.kernels, &Ways { images: args.images.clone(), accelerator: None, limit: LIMIT, answers })
}

/// Machines that boot while other work is done.
#[must_use]
pub struct Boots(Vec<JoinHandle<()>>);

impl Boots {
    /// Waits until none is under way: who ended before would leave them running.
    pub fn finish(self) {
        for boot in self.0 {
            // What went wrong is found by who asks.
            let _ = boot.join();
        }
    }
}

/// Boots those that will be asked about this object, and were not before.
pub fn boot(kernels: &[Arc<OtherKernel>], object: &[u8], program_type: Option<&str>) -> Boots {
    let asked = kernels.iter().filter(|kernel| !kernel.knows(object, program_type));
    Boots(
        asked
            .map(|kernel| {
                let kernel = kernel.clone();
                std::thread::spawn(move || {
                    // What goes wrong is found by who asks.
                    let _ = kernel.start();
                })
            })
            .collect(),
    )
}

impl bpf_driver::OtherKernel for OtherKernel {
    fn name(&self) -> &str {
        &self.image.release
    }

    fn judge(&self, object: &[u8], program_type: Option<&str>) -> Result<ObjectVerdict, String> {
        let answer = self.ask(object, program_type).map_err(|failure| failure.message)?;
        match answer.error {
            Some(why) => Err(why),
            None => Ok(ObjectVerdict {
                programs: answer.programs.iter().map(verdict).collect(),
                not_loadable: answer.not_loadable,
            }),
        }
    }
}

/// What came over the line, as the running kernel would have said it, as far as it came.
fn verdict(p: &Judged) -> ProgramVerdict {
    let reason = p.reason.clone().unwrap_or_default();
    let all = [
        LoadVerdict::Accepted,
        LoadVerdict::Rejected { errno: EINVAL, log: reason.clone() },
        LoadVerdict::Unsupported { reason: reason.clone() },
        LoadVerdict::OutOfMeans { reason: reason.clone() },
        LoadVerdict::OutOfTime,
    ];
    let said = all.into_iter().find(|v| crate::load::verdict(v) == p.verdict);
    let stats = p.processed.map(|processed| VerifierStats {
        processed,
        total_states: p.states.unwrap_or_default(),
        peak_states: p.peak_states.unwrap_or_default(),
        stack_depths: p.stack_depths.clone(),
        ..VerifierStats::default()
    });
    let verdict = said.unwrap_or(LoadVerdict::NotLoadable { reason });
    let plain = ProgramVerdict::new(p.name.clone(), p.section.clone(), ProgramType::UNSPEC, p.slots, verdict);
    ProgramVerdict { stats, ..plain }
}

fn read(place: &Path) -> Option<Answer> {
    serde_json::from_slice(&fs::read(place).ok()?).ok()
}

/// Keeps an answer. Where that cannot be, it is asked for again.
fn keep(place: &Path, answer: &Answer) {
    let Ok(text) = serde_json::to_vec(answer) else { return };
    let _ = place.parent().map(fs::create_dir_all);
    if let Ok(file) = Destination::of(place) {
        let _ = file.write(&text, None);
    }
}

/// Names and images that are kept, sorted; other files are passed over.
pub fn kept(folder: &Path) -> Vec<(String, Image)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut all: Vec<_> =
        entries.filter_map(|e| Some((e.file_name().into_string().ok()?, Image::open(&e.path()).ok()?))).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

/// An image at this place.
///
/// # Errors
/// If there is none.
pub fn open(path: &Path) -> Result<Image, Failure> {
    Image::open(path).map_err(|e| Failure::bad_input(e.to_string()))
}

/// The image that is meant: a path, a name, or the beginning of just one name that ends where a part of it does.
fn named(folder: Option<&Path>, wanted: &str) -> Result<Image, Failure> {
    if wanted.contains('/') {
        return open(Path::new(wanted));
    }
    let folder = folder.map(Path::to_owned).or_else(default_images);
    let all = folder.as_deref().map(kept).unwrap_or_default();
    if let Some((_, image)) = all.iter().find(|(name, _)| name == wanted) {
        return Ok(image.clone());
    }
    let begins = |name: &str| name.strip_prefix(wanted).is_some_and(|rest| rest.starts_with(['.', '-', '+', '~']));
    let meant: Vec<&(String, Image)> = all.iter().filter(|(name, _)| begins(name)).collect();
    match meant[..] {
        [(_, image)] => Ok(image.clone()),
        [] => Err(Failure::bad_input(format!("no kernel image called `{wanted}`"))
            .with_hint("`bpf-opt kernels list` prints those there are; `kernels add VMLINUZ` keeps one")),
        _ => {
            let names: Vec<&str> = meant.iter().map(|(name, _)| name.as_str()).collect();
            Err(Failure::bad_input(format!("`{wanted}` may mean {}", names.join(" or "))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that does not boot, of which answers are kept in the folder.
    fn kernel(folder: &Path, release: &str) -> Arc<OtherKernel> {
        // Of a bzImage the header, which says the release.
        let mut image = vec![0; 0x400];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x20e..0x210].copy_from_slice(&0x100u16.to_le_bytes());
        image[0x300..0x300 + release.len()].copy_from_slice(release.as_bytes());
        let path = folder.join(release);
        fs::write(&path, image).expect("written");
        let answers = Some(folder.join("answers"));
        let ways = Ways { images: None, accelerator: None, limit: Duration::ZERO, answers };
        let mut named = OtherKernel::named(&[path.display().to_string()], &ways).expect("an image");
        named.swap_remove(0)
    }

    #[test]
    fn what_was_asked_before_is_answered_without_a_machine() {
        let folder = tempfile::tempdir().expect("a folder");
        let asked = kernel(folder.path(), "6.1.0");
        let object: &[u8] = b"an object";
        let said = Answer { not_loadable: Some("no such map".to_owned()), ..Answer::default() };
        let question = guest::question(object, Some("xdp")).expect("packed");
        assert!(!asked.knows(object, Some("xdp")));
        keep(&asked.place(&question).expect("answers are kept"), &said);
        assert!(asked.knows(object, Some("xdp")));
        let answer = asked.ask(object, Some("xdp")).expect("no machine is needed");
        assert_eq!(answer.not_loadable, said.not_loadable);
        // The same kernel from another run of this program.
        assert!(kernel(folder.path(), "6.1.0").knows(object, Some("xdp")));
        assert!(!asked.knows(b"an objecT", Some("xdp")), "another object");
        assert!(!asked.knows(object, Some("tc")) && !asked.knows(object, None), "another type");
        assert!(!kernel(folder.path(), "6.1.1").knows(object, Some("xdp")), "another kernel");
    }

    #[test]
    fn a_damaged_answer_is_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = folder.path().join("answers/of.json");
        keep(&place, &Answer { release: "6.1.0".to_owned(), ..Answer::default() });
        assert!(read(&place).is_some_and(|answer| answer.release == "6.1.0"));
        let text = fs::read(&place).expect("kept");
        fs::write(&place, &text[..text.len() / 2]).expect("written");
        assert!(read(&place).is_none());
    }
}
