//! Reading inputs, and writing outputs that are complete or not there.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use bpf_driver::QueryFolder;

use crate::failure::Failure;

/// Larger than any BPF object; keeps `/dev/zero` and disk images out.
const LARGEST: u64 = 1 << 30;

/// The permission bits of a file.
const MODE: u32 = 0o777;

/// The bytes of a file.
pub fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let fail = |e: io::Error| Failure::io("read", path, &e);
    let file = File::open(path).map_err(fail)?;
    let about = file.metadata().map_err(fail)?;
    if about.is_dir() {
        return Err(Failure::bad_input(format!("{}: is a directory, not an object file", path.display())));
    }
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, LARGEST + 1), &mut bytes).map_err(fail)?;
    if bytes.len() as u64 > LARGEST {
        return Err(Failure::bad_input(format!("{}: larger than 1 GiB: not a BPF object", path.display())));
    }
    Ok(bytes)
}

/// The folder for the prover's queries, made if it is not there.
pub fn query_folder(path: &Path) -> Result<QueryFolder, Failure> {
    QueryFolder::create(path).map_err(|e| Failure::io("make this folder", path, &e))
}

/// Tells whether all queries were written.
pub fn queries_written(folder: Option<QueryFolder>) -> Result<(), Failure> {
    match folder.map(QueryFolder::finish) {
        Some(Err(e)) => Err(Failure::bad_input(format!("cannot write a query: {e}"))),
        _ => Ok(()),
    }
}

/// A place to write to, known to be good before any work is done.
#[derive(Debug)]
pub enum Destination {
    /// A regular file, replaced in one step.
    File(PathBuf),
    /// A device or a pipe, which cannot be replaced.
    Stream(PathBuf),
    /// Standard output.
    Stdout,
}

impl Destination {
    /// Checks that `path` can be written.
    pub fn of(path: &Path) -> Result<Destination, Failure> {
        // A symbolic link stays, its target is replaced.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        match fs::metadata(&path) {
            Ok(about) if about.is_dir() => {
                Err(Failure::bad_input(format!("{}: is a directory; name a file to write", path.display())))
            }
            Ok(about) if !about.is_file() => Ok(Destination::Stream(path)),
            _ => match fs::metadata(folder(&path)) {
                Ok(about) if about.is_dir() => Ok(Destination::File(path)),
                Ok(_) => Err(Failure::bad_input(format!("{}: is not a directory", folder(&path).display()))),
                Err(e) => Err(Failure::io("write", &path, &e)),
            },
        }
    }

    /// The same, where `-` is standard output.
    pub fn or_stdout(path: &Path) -> Result<Destination, Failure> {
        if path == Path::new("-") { Ok(Destination::Stdout) } else { Destination::of(path) }
    }

    /// The place for a report, if there is to be one; `others` are the files that the command reads or writes besides.
    ///
    /// # Errors
    /// If it cannot be written, or if it is one of the others.
    pub fn of_report(path: Option<&Path>, others: &[&Path]) -> Result<Option<Destination>, Failure> {
        let Some(path) = path else { return Ok(None) };
        let destination = Destination::or_stdout(path)?;
        destination.overwrites_none("the report", others, "name another file behind --json")?;
        Ok(Some(destination))
    }

    /// Checks that writing `what` there leaves these files as they are.
    ///
    /// # Errors
    /// If it is one of them.
    pub fn overwrites_none(&self, what: &str, others: &[&Path], hint: &str) -> Result<(), Failure> {
        let Destination::File(path) = self else { return Ok(()) };
        match others.iter().find(|o| is_same(o, path)) {
            None => Ok(()),
            Some(other) => {
                let text = format!("{}: {what} would overwrite {}", path.display(), other.display());
                Err(Failure::bad_input(text).with_hint(hint))
            }
        }
    }

    /// Writes it all, or changes nothing. The file gets the permission bits `mode`; without, those of any new file.
    pub fn write(&self, bytes: &[u8], mode: Option<u32>) -> Result<(), Failure> {
        match self {
            Destination::Stdout => {
                print(&String::from_utf8_lossy(bytes));
                Ok(())
            }
            Destination::Stream(path) => File::options()
                .write(true)
                .open(path)
                .and_then(|mut f| f.write_all(bytes))
                .map_err(|e| Failure::io("write", path, &e)),
            Destination::File(path) => replace(path, bytes, mode).map_err(|e| Failure::io("write", path, &e)),
        }
    }
}

/// Whether two paths lead to one file, be it there already or not.
fn is_same(a: &Path, b: &Path) -> bool {
    let whole = |p: &Path| {
        let inside = || Some(fs::canonicalize(folder(p)).ok()?.join(p.file_name()?));
        fs::canonicalize(p).ok().or_else(inside).unwrap_or_else(|| p.to_owned())
    };
    whole(a) == whole(b)
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn replace(path: &Path, bytes: &[u8], mode: Option<u32>) -> io::Result<()> {
    // The process's umask applies to this mode, but not to one set afterwards.
    let mut file = tempfile::Builder::new()
        .prefix(".bpf-opt-")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder(path))?;
    file.write_all(bytes)?;
    if let Some(mode) = mode {
        file.as_file().set_permissions(Permissions::from_mode(mode & MODE))?;
    }
    file.as_file().sync_data()?;
    file.persist(path)?;
    Ok(())
}

/// The permission bits of an existing file.
pub fn mode_of(path: &Path) -> Option<u32> {
    fs::metadata(path).ok().map(|about| about.permissions().mode() & MODE)
}

/// Prints to standard output. That nobody reads on (`| head`) is no error.
pub fn print(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Prints a line to standard error, whoever listens.
pub fn complain(line: impl std::fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Serializes a report to its destination.
pub fn write_json(destination: &Destination, report: &impl serde::Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_string_pretty(report).map_err(|e| Failure {
        code: crate::failure::exit::INTERNAL,
        message: e.to_string(),
        hint: None,
    })?;
    text.push('\n');
    destination.write(text.as_bytes(), None)
}
