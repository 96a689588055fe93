//! `bpf-opt kernels`: other kernels than the one that runs, booted under qemu.
//!
//! The one idea: an image is kept under a name, one boot answers for many objects, and a kernel that does not answer is no
//! verdict: exit code 3.

use std::fs;
use std::path::{Path, PathBuf};

use bpf_vm::{Accelerator, Guest, Image, Program};
use serde::Serialize;

use crate::args::{KernelsArgs, KernelsCommand, KernelsLoadArgs, default_images};
use crate::document::Head;
use crate::failure::{Failure, exit};
use crate::files::{self, Destination};
use crate::guest::{Answer, Judged, MARK, OBJECTS};

/// Memory of a guest beside its files, in MiB: room for the stack that this program reserves (`STACK` in `main.rs`), and as much again.
const MEMORY: u32 = 2048;

/// The JSON report of `kernels load`; docs/json.md describes it.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    head: Head<'a>,
    kernels: Vec<Kernel<'a>>,
}

#[derive(Serialize)]
struct Kernel<'a> {
    name: &'a str,
    release: &'a str,
    objects: Vec<ObjectOf<'a>>,
}

#[derive(Serialize)]
struct ObjectOf<'a> {
    input: &'a Path,
    error: Option<&'a str>,
    not_loadable: Option<&'a str>,
    programs: &'a [Judged],
}

/// A kernel that was asked for, and its answers in the order of the files.
struct Asked {
    name: String,
    image: Image,
    answers: Vec<Answer>,
}

/// Runs the command.
pub fn run(args: &KernelsArgs) -> Result<u8, Failure> {
    let folder = args.images.clone().or_else(default_images);
    let folder = || {
        let failure = Failure::bad_input("no home directory to keep images in").with_hint("give --images FOLDER");
        folder.clone().ok_or(failure)
    };
    match &args.command {
        KernelsCommand::Add { image, name } => add(&folder()?, image, name.as_deref()),
        KernelsCommand::List => list(&folder()?),
        KernelsCommand::Remove { name } => {
            let path = folder()?.join(name);
            fs::remove_file(&path).map_err(|e| Failure::io("delete", &path, &e))?;
            Ok(exit::YES)
        }
        KernelsCommand::Load(load_args) => load(folder().ok().as_deref(), load_args),
    }
}

fn open(path: &Path) -> Result<Image, Failure> {
    Image::open(path).map_err(|e| Failure::bad_input(e.to_string()))
}

fn add(folder: &Path, path: &Path, name: Option<&str>) -> Result<u8, Failure> {
    let image = open(path)?;
    fs::create_dir_all(folder).map_err(|e| Failure::io("make this folder", folder, &e))?;
    let name = name.unwrap_or(&image.release);
    Destination::of(&folder.join(name))?.write(&files::read(path)?, None)?;
    files::print(&format!("{name}: kept\n"))?;
    Ok(exit::YES)
}

/// Names and images that are kept, sorted; other files are passed over.
fn kept(folder: &Path) -> Vec<(String, Image)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut all: Vec<_> =
        entries.filter_map(|e| Some((e.file_name().into_string().ok()?, Image::open(&e.path()).ok()?))).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

fn list(folder: &Path) -> Result<u8, Failure> {
    let lines = kept(folder).into_iter().map(|(name, image)| match name == image.release {
        true => format!("{name}\n"),
        false => format!("{name}  {}\n", image.release),
    });
    files::print(&lines.collect::<String>())?;
    Ok(exit::YES)
}

/// The image that is meant: a path, a name, or the beginning of just one name that ends where a part of it does.
fn named(folder: Option<&Path>, wanted: &str) -> Result<Image, Failure> {
    if wanted.contains('/') {
        return open(Path::new(wanted));
    }
    let all = folder.map(kept).unwrap_or_default();
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

fn load(folder: Option<&Path>, args: &KernelsLoadArgs) -> Result<u8, Failure> {
    let inputs: Vec<&Path> = args.files.iter().map(PathBuf::as_path).collect();
    let json = Destination::of_report(args.json.as_deref(), &inputs)?;
    let mut objects = Vec::new();
    for (number, path) in inputs.iter().enumerate() {
        let bytes = files::read(path)?;
        bpf_object::Object::parse(bytes.clone()).map_err(|e| Failure::object(path, &e))?;
        objects.push((format!("{OBJECTS}/{number}"), bytes));
    }
    let mut asked = Vec::new();
    for name in &args.kernels {
        let image = named(folder, name)?;
        asked.push(Asked { name: name.clone(), image, answers: Vec::new() });
    }
    let program = Program::running()
        .map_err(|e| Failure::bad_input(format!("cannot find what this program consists of: {e}")))?;
    for kernel in &mut asked {
        kernel.answers = ask(&kernel.image, &program, &objects, args)?;
    }

    let all = || asked.iter().flat_map(|k| &k.answers);
    let code = match () {
        () if all().any(|a| a.error.is_some()) => exit::UNKNOWN,
        () if all().all(Answer::is_accepted) => exit::YES,
        () => exit::NO,
    };
    if let Some(json) = &json {
        let kernels = asked.iter().map(|k| Kernel {
            name: &k.name,
            release: &k.image.release,
            objects: k
                .answers
                .iter()
                .zip(&inputs)
                .map(|(a, input)| ObjectOf {
                    input,
                    error: a.error.as_deref(),
                    not_loadable: a.not_loadable.as_deref(),
                    programs: &a.programs,
                })
                .collect(),
        });
        let document = Document { head: Head::new("kernels load", code, None), kernels: kernels.collect() };
        files::write_json(json, &document)?;
    }
    if !matches!(json, Some(Destination::Stdout)) {
        files::print(&text(&asked, &inputs))?;
    }
    Ok(code)
}

/// Boots one kernel, and gives its answers in the order of the objects.
fn ask(
    image: &Image,
    program: &Program,
    objects: &[(String, Vec<u8>)],
    args: &KernelsLoadArgs,
) -> Result<Vec<Answer>, Failure> {
    let mut arguments = vec!["guest".to_owned()];
    arguments.extend(args.program_type.iter().flat_map(|kind| ["--type".to_owned(), kind.clone()]));
    let bytes: usize = objects.iter().map(|(_, b)| b.len()).sum();
    // The archive is there twice while the kernel unpacks it.
    let memory = MEMORY + u32::try_from(bytes >> 20).unwrap_or(u32::MAX >> 2) * 2;
    let guest = Guest {
        image,
        program,
        arguments: &arguments,
        files: objects,
        first_words: MARK,
        accelerator: args.accelerator.map(Accelerator::from),
        memory,
        limit: args.time_limit,
    };
    let console = guest.run().map_err(|e| Failure {
        code: exit::UNKNOWN,
        message: e.to_string(),
        hint: Some("kernels are booted with qemu-system-x86_64 (Debian: qemu-system-x86)".to_owned())
            .filter(|_| !bpf_vm::is_available()),
    })?;
    let mut answers: Vec<Answer> = (0..objects.len())
        .map(|object| Answer {
            object,
            error: Some(format!(
                "the machine stopped before it was asked; its last words: {:?}",
                bpf_vm::last_words(&console)
            )),
            ..Answer::default()
        })
        .collect();
    for line in console.lines().filter_map(|line| line.trim().strip_prefix(MARK)) {
        match serde_json::from_str::<Answer>(line) {
            Ok(answer) if answer.object < answers.len() => {
                let at = answer.object;
                answers[at] = answer;
            }
            // A line that did not come over whole: there is no answer.
            _ => {}
        }
    }
    Ok(answers)
}

/// A row for each object, a column for each kernel; then why not.
fn text(asked: &[Asked], inputs: &[&Path]) -> String {
    let mut rows =
        vec![std::iter::once("object").chain(asked.iter().map(|k| k.name.as_str())).map(str::to_owned).collect()];
    let mut remarks = String::new();
    for (number, input) in inputs.iter().enumerate() {
        let mut row = vec![input.display().to_string()];
        for kernel in asked {
            let answer = &kernel.answers[number];
            let good = answer.programs.iter().filter(|p| p.is_accepted()).count();
            row.push(match answer {
                a if a.error.is_some() => "no answer".to_owned(),
                a if a.not_loadable.is_some() => "not loadable".to_owned(),
                a => format!("{good} of {}", a.programs.len()),
            });
            let place = format!("{}: {}", kernel.image.release, input.display());
            for why in answer.error.iter().chain(&answer.not_loadable) {
                remarks += &format!("{place}: {}\n", why.trim_end());
            }
            for p in answer.programs.iter().filter(|p| !p.is_accepted()) {
                remarks += &format!("{place}: {}: {}: {}\n", p.name, p.verdict, p.reason.as_deref().unwrap_or(""));
            }
        }
        rows.push(row);
    }
    let widths: Vec<usize> =
        (0..=asked.len()).map(|c| rows.iter().map(|r: &Vec<String>| r[c].chars().count()).max().unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, &w)| format!("{cell:<w$}")).collect();
        cells.join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect::<String>() + &remarks
}
