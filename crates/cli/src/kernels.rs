//! `bpf-opt kernels`: other kernels than the one that runs, booted under qemu.
//!
//! The one idea: an image is kept under a name, one boot answers for many objects, and a kernel that does not answer is no
//! verdict: exit code 3.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bpf_vm::Accelerator;
use serde::Serialize;

use crate::args::{KernelsArgs, KernelsCommand, KernelsLoadArgs, default_answers, default_images};
use crate::document::Head;
use crate::elsewhere::{OtherKernel, Ways, kept, open};
use crate::failure::{Failure, exit};
use crate::files::{self, Destination};
use crate::guest::{Answer, Judged};

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
    kernel: Arc<OtherKernel>,
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
        KernelsCommand::Load(load_args) => load(args.images.clone(), load_args),
    }
}

fn add(folder: &Path, path: &Path, name: Option<&str>) -> Result<u8, Failure> {
    let image = open(path)?;
    fs::create_dir_all(folder).map_err(|e| Failure::io("make this folder", folder, &e))?;
    let name = name.unwrap_or(&image.release);
    Destination::of(&folder.join(name))?.write(&files::read(path)?, None)?;
    files::print(&format!("{name}: kept\n"))?;
    Ok(exit::YES)
}

fn list(folder: &Path) -> Result<u8, Failure> {
    let lines = kept(folder).into_iter().map(|(name, image)| match name == image.release {
        true => format!("{name}\n"),
        false => format!("{name}  {}\n", image.release),
    });
    files::print(&lines.collect::<String>())?;
    Ok(exit::YES)
}

fn load(images: Option<PathBuf>, args: &KernelsLoadArgs) -> Result<u8, Failure> {
    let inputs: Vec<&Path> = args.files.iter().map(PathBuf::as_path).collect();
    let json = Destination::of_report(args.json.as_deref(), &inputs)?;
    let mut objects = Vec::new();
    for path in &inputs {
        let bytes = files::read(path)?;
        let object = bpf_object::Object::parse(bytes.clone()).map_err(|e| Failure::object(path, &e))?;
        Failure::unless_for_this_kernel(path, &object)?;
        objects.push(bytes);
    }
    let ways = Ways {
        images,
        accelerator: args.accelerator.map(Accelerator::from),
        limit: args.time_limit,
        answers: default_answers().filter(|_| !args.no_cache),
    };
    let mut asked = Vec::new();
    for kernel in OtherKernel::named(&args.kernels, &ways)? {
        let answers = objects.iter().map(|bytes| kernel.ask(bytes, args.program_type.as_deref()));
        let answers = answers.collect::<Result<_, _>>()?;
        asked.push(Asked { kernel, answers });
    }

    let all = || asked.iter().flat_map(|k| &k.answers);
    let code = match () {
        () if all().any(|a| a.error.is_some()) => exit::UNKNOWN,
        () if all().all(Answer::is_accepted) => exit::YES,
        () => exit::NO,
    };
    if let Some(json) = &json {
        let kernels = asked.iter().map(|k| Kernel {
            name: &k.kernel.name,
            release: &k.kernel.image.release,
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

/// A row for each object, a column for each kernel; then why not.
fn text(asked: &[Asked], inputs: &[&Path]) -> String {
    let mut rows = vec![
        std::iter::once("object").chain(asked.iter().map(|k| k.kernel.name.as_str())).map(str::to_owned).collect(),
    ];
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
            let place = format!("{}: {}", kernel.kernel.image.release, input.display());
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
