//! Reading inputs, and writing outputs that are complete or not there.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use bpf_driver::QueryFolder;
use tempfile::NamedTempFile;

use crate::failure::Failure;

/// Larger than any BPF object; keeps `/dev/zero` and disk images out.
const LARGEST: u64 = 1 << 30;

/// The permission bits of a file.
const MODE: u32 = 0o777;

/// Whether a path stands for standard input, or for standard output where something is written.
pub fn is_dash(path: &Path) -> bool {
    path == Path::new("-")
}

/// The bytes of a file; of `-`, what comes from standard input.
pub fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let fail = |e: io::Error| Failure::io("read", path, &e);
    if is_dash(path) {
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(io::stdin().lock(), LARGEST + 1), &mut bytes).map_err(fail)?;
        return of_a_good_size(path, bytes);
    }
    let file = File::open(path).map_err(fail)?;
    let about = file.metadata().map_err(fail)?;
    if about.is_dir() {
        return Err(Failure::bad_input(format!("{}: is a directory, not an object file", path.display())));
    }
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, LARGEST + 1), &mut bytes).map_err(fail)?;
    of_a_good_size(path, bytes)
}

fn of_a_good_size(path: &Path, bytes: Vec<u8>) -> Result<Vec<u8>, Failure> {
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
    /// Standard output, for people or their scripts: that nobody reads on is no error.
    Stdout,
    /// Standard output, for an object: that nobody takes it is an error.
    Pipe,
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
        if is_dash(path) { Ok(Destination::Stdout) } else { Destination::of(path) }
    }

    /// The place for an object, where `-` is standard output.
    pub fn of_object(path: &Path) -> Result<Destination, Failure> {
        if is_dash(path) { Ok(Destination::Pipe) } else { Destination::of(path) }
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

    /// The place for a table of comma-separated values, likewise.
    ///
    /// # Errors
    /// As above.
    pub fn of_csv(path: Option<&Path>, others: &[&Path]) -> Result<Option<Destination>, Failure> {
        let Some(path) = path else { return Ok(None) };
        let destination = Destination::or_stdout(path)?;
        destination.overwrites_none("the table", others, "name another file behind --csv")?;
        Ok(Some(destination))
    }

    /// Checks that writing `what` there leaves these files as they are.
    ///
    /// # Errors
    /// If it is one of them.
    pub fn overwrites_none(&self, what: &str, others: &[&Path], hint: &str) -> Result<(), Failure> {
        let Destination::File(path) = self else { return Ok(()) };
        let path = whole(path);
        match others.iter().find(|o| whole(o) == path) {
            None => Ok(()),
            Some(other) => {
                let text = format!("{}: {what} would overwrite {}", path.display(), other.display());
                Err(Failure::bad_input(text).with_hint(hint))
            }
        }
    }

    /// Writes it all, or changes nothing. The file gets the permission bits `mode`; without, those of any new file.
    pub fn write(&self, bytes: &[u8], mode: Option<u32>) -> Result<(), Failure> {
        self.write_by(|to| to.write_all(bytes), mode)
    }

    /// The same for what is not in memory as a whole: `by` writes it.
    pub fn write_by(
        &self,
        mut by: impl FnMut(&mut dyn Write) -> io::Result<()>,
        mode: Option<u32>,
    ) -> Result<(), Failure> {
        let mut to_stdout = || {
            let mut out = io::stdout().lock();
            by(&mut out).and_then(|()| out.flush())
        };
        match self {
            Destination::Stdout => printed(to_stdout()),
            Destination::Pipe => to_stdout().map_err(|e| Failure::io("write", Path::new("standard output"), &e)),
            Destination::Stream(path) => File::options()
                .write(true)
                .open(path)
                .and_then(|mut f| by(&mut f))
                .map_err(|e| Failure::io("write", path, &e)),
            Destination::File(path) => replace(path, by, mode).map_err(|e| Failure::io("write", path, &e)),
        }
    }
}

/// Where what is written piece by piece waits until it is complete; what cannot be replaced is written at once.
#[derive(Debug)]
pub struct Pieces {
    destination: Destination,
    beside: Option<NamedTempFile>,
}

impl Pieces {
    /// Begins with an empty file.
    pub fn to(destination: Destination) -> Result<Pieces, Failure> {
        let beside = match &destination {
            Destination::File(path) => Some(beside(path).map_err(|e| Failure::io("write", path, &e))?),
            Destination::Stream(_) | Destination::Stdout | Destination::Pipe => None,
        };
        Ok(Pieces { destination, beside })
    }

    /// Where to write; `-` is standard output.
    pub fn path(&self) -> &Path {
        match (&self.beside, &self.destination) {
            (Some(file), _) => file.path(),
            (None, Destination::File(path) | Destination::Stream(path)) => path,
            (None, Destination::Stdout | Destination::Pipe) => Path::new("-"),
        }
    }

    /// All is written.
    pub fn finish(self) -> Result<(), Failure> {
        if let (Some(file), Destination::File(path)) = (self.beside, &self.destination) {
            file.persist(path).map_err(|e| Failure::io("write", path, &e.error))?;
        }
        Ok(())
    }
}

/// The one path of a file, be it there already or not, as long as its folder is.
pub fn whole(path: &Path) -> PathBuf {
    let inside = || Some(fs::canonicalize(folder(path)).ok()?.join(path.file_name()?));
    fs::canonicalize(path).ok().or_else(inside).unwrap_or_else(|| path.to_owned())
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file that is to take this place when it is complete. Dropped before, it is gone.
fn beside(path: &Path) -> io::Result<NamedTempFile> {
    // The process's umask applies to this mode, but not to one set afterwards.
    let mut builder = tempfile::Builder::new();
    builder.prefix(".bpf-opt-").permissions(Permissions::from_mode(0o666)).tempfile_in(folder(path))
}

fn replace(path: &Path, mut by: impl FnMut(&mut dyn Write) -> io::Result<()>, mode: Option<u32>) -> io::Result<()> {
    let mut file = beside(path)?;
    by(&mut file)?;
    if let Some(mode) = mode {
        file.as_file().set_permissions(Permissions::from_mode(mode & MODE))?;
    }
    file.as_file().sync_data()?;
    file.persist(path)?;
    Ok(())
}

/// The permission bits of an existing file.
pub fn mode_of(path: &Path) -> Option<u32> {
    fs::metadata(path).ok().filter(|_| !is_dash(path)).map(|about| about.permissions().mode() & MODE)
}

/// Prints to standard output. That nobody reads on (`| head`) is no error.
///
/// # Errors
/// If it cannot be written, as on a disk that is full.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    printed(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// What became of a text for people or their scripts.
pub fn printed(outcome: io::Result<()>) -> Result<(), Failure> {
    match outcome {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(Failure::io("write", Path::new("standard output"), &e)),
        _ => Ok(()),
    }
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

/// The same for a report that is not in memory as a whole.
pub fn stream_json(destination: &Destination, report: &impl serde::Serialize) -> Result<(), Failure> {
    destination.write_by(
        |to| {
            let mut to = io::BufWriter::new(to);
            serde_json::to_writer_pretty(&mut to, report)?;
            to.write_all(b"\n")?;
            to.flush()
        },
        None,
    )
}
