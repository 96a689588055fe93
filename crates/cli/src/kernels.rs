//! `bpf-opt kernels`: other kernels than the one that runs, booted under qemu.
//!
//! The one idea: an image is kept under a name, one boot answers for many objects, and a kernel that does not answer is no
//! verdict: exit code 3. An object that cannot be read does not keep the others from being judged.

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
use crate::many::inputs::{self, Item};

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

impl<'a> ObjectOf<'a> {
    fn new(object: &'a Wanted, answer: Option<&'a Answer>) -> ObjectOf<'a> {
        let failed = object.bytes.as_ref().err().map(|failure| failure.message.as_str());
        ObjectOf {
            input: &object.path,
            error: failed.or(answer.and_then(|a| a.error.as_deref())),
            not_loadable: answer.and_then(|a| a.not_loadable.as_deref()),
            programs: answer.map_or(&[], |a| &a.programs),
        }
    }
}

/// An object that kernels are to be asked about: its bytes, or why they cannot be.
struct Wanted {
    path: PathBuf,
    bytes: Result<Vec<u8>, Failure>,
}

/// An object's bytes, if a kernel of this machine's byte order may be asked about it.
fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let bytes = files::read(path)?;
    let object = bpf_object::Object::parse(bytes.clone()).map_err(|e| Failure::object(path, &e))?;
    Failure::unless_for_this_kernel(path, &object)?;
    Ok(bytes)
}

/// A kernel that was asked for, and its answers in the order of the objects; none about what could not be read.
struct Asked {
    kernel: Arc<OtherKernel>,
    answers: Vec<Option<Answer>>,
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
    let items = match (&args.files[..], &args.list) {
        // Standard input, which is not one of many.
        ([one], None) if files::is_dash(one) => vec![Item { path: one.clone(), below: one.clone() }],
        _ => inputs::gather(&args.files, args.list.as_deref(), None)?,
    };
    let besides: Vec<&Path> = items.iter().map(|item| item.path.as_path()).chain(args.list.as_deref()).collect();
    let json = Destination::of_report(args.json.as_deref(), &besides)?;
    let objects: Vec<Wanted> =
        items.into_iter().map(|item| Wanted { bytes: read(&item.path), path: item.path }).collect();
    let ways = Ways {
        images,
        accelerator: args.accelerator.map(Accelerator::from),
        limit: args.time_limit,
        answers: default_answers().filter(|_| !args.no_cache),
    };
    let mut asked = Vec::new();
    for kernel in OtherKernel::named(&args.kernels, &ways)? {
        let ask = |bytes: &Vec<u8>| kernel.ask(bytes, args.program_type.as_deref());
        let answers = objects.iter().map(|object| object.bytes.as_ref().ok().map(ask).transpose());
        let answers = answers.collect::<Result<_, _>>()?;
        asked.push(Asked { kernel, answers });
    }

    let all = || asked.iter().flat_map(|k| k.answers.iter().flatten());
    let failures = || objects.iter().filter_map(|object| object.bytes.as_ref().err());
    let code = match failures().map(|failure| failure.code).max() {
        Some(code) => code,
        None if all().any(|a| a.error.is_some()) => exit::UNKNOWN,
        None if all().all(Answer::is_accepted) => exit::YES,
        None => exit::NO,
    };
    if let Some(json) = &json {
        let kernels = asked.iter().map(|k| Kernel {
            name: &k.kernel.name,
            release: &k.kernel.image.release,
            objects: objects.iter().zip(&k.answers).map(|(o, answer)| ObjectOf::new(o, answer.as_ref())).collect(),
        });
        let document = Document { head: Head::new("kernels load", code, None), kernels: kernels.collect() };
        files::write_json(json, &document)?;
    }
    if matches!(json, Some(Destination::Stdout)) {
        failures().for_each(files::complain);
    } else {
        files::print(&text(&asked, &objects))?;
    }
    Ok(code)
}

/// A row for each object, a column for each kernel; then why not.
fn text(asked: &[Asked], objects: &[Wanted]) -> String {
    let mut rows = vec![
        std::iter::once("object").chain(asked.iter().map(|k| k.kernel.name.as_str())).map(str::to_owned).collect(),
    ];
    let mut remarks = String::new();
    for (number, object) in objects.iter().enumerate() {
        let mut row = vec![object.path.display().to_string()];
        for kernel in asked {
            let Some(answer) = &kernel.answers[number] else {
                row.push("failed".to_owned());
                continue;
            };
            let good = answer.programs.iter().filter(|p| p.is_accepted()).count();
            row.push(match answer {
                a if a.error.is_some() => "no answer".to_owned(),
                a if a.not_loadable.is_some() => "not loadable".to_owned(),
                a => format!("{good} of {}", a.programs.len()),
            });
            let place = format!("{}: {}", kernel.kernel.image.release, object.path.display());
            for why in answer.error.iter().chain(&answer.not_loadable) {
                remarks += &format!("{place}: {}\n", why.trim_end());
            }
            for p in answer.programs.iter().filter(|p| !p.is_accepted()) {
                remarks += &format!("{place}: {}: {}: {}\n", p.name, p.verdict, p.reason.as_deref().unwrap_or(""));
            }
        }
        if let Err(failure) = &object.bytes {
            remarks += &format!("{}\n", failure.message);
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
