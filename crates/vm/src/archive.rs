//! What the guest finds: this program, and its libraries.

use std::collections::BTreeMap;
use std::io::{self, Cursor};
use std::path::{Path, PathBuf};

use cpio::NewcBuilder;
use cpio::newc::{ModeFileType, trailer};
use object::elf::{DT_SONAME, FileHeader64, PT_INTERP, PT_LOAD};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, LittleEndian as Le};

/// Where the guest's libraries are.
pub(crate) const LIBRARIES: &str = "/lib";
/// The kernel starts this.
const INIT: &str = "init";
const EXECUTABLE: u32 = 0o755;

/// A program with all that it needs to run where nothing is installed.
#[derive(Debug, Clone)]
pub struct Program {
    executable: Vec<u8>,
    /// The path that the executable names, and the bytes of the program that starts it.
    interpreter: Option<(String, Vec<u8>)>,
    /// By the names by which they are asked for.
    libraries: BTreeMap<String, Vec<u8>>,
}

impl Program {
    /// The one that runs: its libraries are those that are mapped into it.
    ///
    /// # Errors
    /// If `/proc` is not there, or its files are gone.
    pub fn running() -> io::Result<Program> {
        let executable = std::fs::read("/proc/self/exe")?;
        let maps = std::fs::read_to_string("/proc/self/maps")?;
        let mut libraries = BTreeMap::new();
        for path in mapped(&maps) {
            let bytes = std::fs::read(&path)?;
            if let Some(name) = soname(&bytes) {
                libraries.insert(name, stripped(bytes));
            }
        }
        let interpreter = match interpreter(&executable) {
            Some(path) => Some((path.clone(), stripped(std::fs::read(path)?))),
            None => None,
        };
        Ok(Program { executable: stripped(executable), interpreter, libraries })
    }

    /// The executable, as far as it is loaded: another build has others.
    pub fn bytes(&self) -> &[u8] {
        &self.executable
    }
}

/// Files that are mapped with the right to execute, each once.
fn mapped(maps: &str) -> Vec<PathBuf> {
    let executable = maps.lines().filter(|l| l.split_whitespace().nth(1).is_some_and(|rights| rights.contains('x')));
    let mut paths: Vec<PathBuf> =
        executable.filter_map(|l| l.find('/').map(|at| PathBuf::from(&l[at..]))).filter(|p| p.is_file()).collect();
    paths.sort();
    paths.dedup();
    paths
}

/// The archive that the kernel unpacks: the program as its init, and what it needs.
pub(crate) fn archive(program: &Program) -> io::Result<Vec<u8>> {
    let mut all: BTreeMap<PathBuf, &[u8]> = BTreeMap::new();
    all.insert(INIT.into(), &program.executable);
    if let Some((path, bytes)) = &program.interpreter {
        all.insert(relative(path), bytes);
    }
    for (name, bytes) in &program.libraries {
        all.insert(relative(LIBRARIES).join(name), bytes);
    }
    let mut folders: Vec<PathBuf> = ["dev", "proc", "sys", "tmp"].map(PathBuf::from).to_vec();
    folders.extend(all.keys().flat_map(|p| p.ancestors().skip(1)).map(Path::to_owned));
    folders.sort();
    folders.dedup();

    let mut out = Vec::new();
    let mut inode = 0;
    let mut entry = |out: &mut Vec<u8>, path: &Path, kind: ModeFileType, bytes: &[u8]| {
        inode += 1;
        let length = u32::try_from(bytes.len()).map_err(|_| io::Error::other("a file of 4 GiB or more"))?;
        let header = NewcBuilder::new(&path.to_string_lossy()).ino(inode).mode(EXECUTABLE).set_mode_file_type(kind);
        let mut writer = header.write(out, length);
        io::copy(&mut Cursor::new(bytes), &mut writer)?;
        writer.finish().map(|_| ())
    };
    for folder in folders.iter().filter(|f| !f.as_os_str().is_empty()) {
        entry(&mut out, folder, ModeFileType::Directory, &[])?;
    }
    for (path, bytes) in all {
        entry(&mut out, &path, ModeFileType::Regular, bytes)?;
    }
    trailer(&mut out)?;
    Ok(out)
}

fn relative(path: &str) -> PathBuf {
    PathBuf::from(path.trim_start_matches('/'))
}

/// The part of an ELF file that is loaded; sections and debug information behind it are left out.
fn stripped(mut bytes: Vec<u8>) -> Vec<u8> {
    /// Offsets of `e_shoff`, `e_shnum` and `e_shstrndx` in `Elf64_Ehdr`.
    const SECTIONS: [std::ops::Range<usize>; 2] = [0x28..0x30, 0x3c..0x40];
    let Some(end) = segments(&bytes, PT_LOAD).into_iter().map(|r| r.end).max() else { return bytes };
    if end < bytes.len() {
        bytes.truncate(end);
        SECTIONS.into_iter().for_each(|r| bytes[r].fill(0));
    }
    bytes
}

/// Where segments of a kind are in an ELF file of this machine.
fn segments(bytes: &[u8], kind: u32) -> Vec<std::ops::Range<usize>> {
    let Ok(header) = FileHeader64::<Endianness>::parse(bytes) else { return Vec::new() };
    let Ok(endian) = header.endian() else { return Vec::new() };
    let headers = header.program_headers(endian, bytes).unwrap_or_default();
    let of_kind = headers.iter().filter(|h| h.p_type(endian) == kind);
    of_kind
        .filter_map(|h| {
            let start = usize::try_from(h.p_offset(endian)).ok()?;
            let end = start.checked_add(usize::try_from(h.p_filesz(endian)).ok()?)?;
            (end <= bytes.len()).then_some(start..end)
        })
        .collect()
}

fn interpreter(bytes: &[u8]) -> Option<String> {
    let text = &bytes[segments(bytes, PT_INTERP).into_iter().next()?];
    let path = text.split(|b| *b == 0).next()?;
    String::from_utf8(path.to_vec()).ok()
}

/// The name by which programs ask for a library.
fn soname(bytes: &[u8]) -> Option<String> {
    let header = FileHeader64::<Le>::parse(bytes).ok()?;
    let headers = header.program_headers(Le, bytes).ok()?;
    let entries = headers.iter().find_map(|h| h.dynamic(Le, bytes).ok().flatten())?;
    let value = |tag: u32| entries.iter().find(|d| d.d_tag(Le) == u64::from(tag)).map(|d| d.d_val(Le));
    let name = value(DT_SONAME)?;
    let strings = value(object::elf::DT_STRTAB)?.checked_add(name)?;
    // The table is named by its address in memory.
    let text = headers.iter().filter(|h| h.p_type(Le) == PT_LOAD).find_map(|h| {
        let within = strings.checked_sub(h.p_vaddr(Le)).filter(|w| *w < h.p_filesz(Le))?;
        bytes.get(usize::try_from(h.p_offset(Le).checked_add(within)?).ok()?..)
    })?;
    let end = text.iter().position(|b| *b == 0)?;
    String::from_utf8(text[..end].to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_comes_with_what_it_needs() {
        let program = Program::running().expect("it runs");
        assert!(program.libraries.keys().any(|name| name.starts_with("libc.so")), "{:?}", program.libraries.keys());
        assert!(
            program.interpreter.is_some_and(|(path, bytes)| path.contains("ld-linux") && bytes.starts_with(b"\x7fELF"))
        );
        assert!(segments(&program.executable, PT_LOAD).iter().all(|r| r.end <= program.executable.len()));
    }

    #[test]
    fn an_archive_has_files_and_the_folders_above_them() {
        let libraries = [("libc.so".to_owned(), b"abc".to_vec())].into();
        let program = Program { executable: b"x".to_vec(), interpreter: None, libraries };
        let bytes = archive(&program).expect("it fits");
        let mut names = Vec::new();
        let mut rest = Cursor::new(bytes);
        loop {
            let entry = cpio::NewcReader::new(rest).expect("an entry");
            if entry.entry().is_trailer() {
                break;
            }
            names.push(entry.entry().name().to_owned());
            rest = entry.finish().expect("its end");
        }
        assert_eq!(names, ["dev", "lib", "proc", "sys", "tmp", "init", "lib/libc.so"]);
    }
}
