//! Images of kernels: are they any, and which version?

use std::path::{Path, PathBuf};

/// The header of a bzImage (Documentation/arch/x86/boot.rst): magic at this offset …
const MAGIC_AT: usize = 0x202;
/// … with these bytes …
const MAGIC: &[u8] = b"HdrS";
/// … and a 16-bit offset of the version's text, from here on.
const VERSION_AT: usize = 0x20e;
const SETUP: usize = 0x200;
/// No version is longer.
const LONGEST_VERSION: usize = 256;

/// A kernel that can be booted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Where it is.
    pub path: PathBuf,
    /// Its release, as `uname -r` says it: `6.1.0-56-amd64`.
    pub release: String,
}

/// Why a file is no kernel that can be booted.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// It cannot be read.
    #[error("{}: cannot read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// It is something else.
    #[error("{}: is not a kernel image (a bzImage, such as /boot/vmlinuz-*)", path.display())]
    NotAnImage {
        /// The file.
        path: PathBuf,
    },
}

impl Image {
    /// Reads the header of a bzImage.
    ///
    /// # Errors
    /// If the file cannot be read, or is none.
    pub fn open(path: &Path) -> Result<Image, ImageError> {
        let bytes = std::fs::read(path).map_err(|source| ImageError::Read { path: path.to_owned(), source })?;
        let release = release(&bytes).ok_or_else(|| ImageError::NotAnImage { path: path.to_owned() })?;
        Ok(Image { path: path.to_owned(), release })
    }
}

/// The first word of the version in a bzImage.
fn release(bytes: &[u8]) -> Option<String> {
    if bytes.get(MAGIC_AT..MAGIC_AT + MAGIC.len())? != MAGIC {
        return None;
    }
    let offset: [u8; 2] = bytes.get(VERSION_AT..VERSION_AT + 2)?.try_into().ok()?;
    let text = bytes.get(SETUP + usize::from(u16::from_le_bytes(offset))..)?;
    let text = &text[..text.len().min(LONGEST_VERSION)];
    let end = text.iter().position(|b| *b == 0 || *b == b' ')?;
    let release = std::str::from_utf8(&text[..end]).ok()?;
    release.starts_with(|c: char| c.is_ascii_digit()).then(|| release.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_of_a_boot_image_tells_the_release() {
        let mut bytes = vec![0; 0x400];
        bytes[MAGIC_AT..MAGIC_AT + 4].copy_from_slice(MAGIC);
        bytes[VERSION_AT..VERSION_AT + 2].copy_from_slice(&0x100u16.to_le_bytes());
        let text = b"6.1.0-56-amd64 (debian-kernel@lists.debian.org) #1 SMP\0";
        bytes[0x300..0x300 + text.len()].copy_from_slice(text);
        assert_eq!(release(&bytes).as_deref(), Some("6.1.0-56-amd64"));
        bytes[MAGIC_AT] = b'h';
        assert_eq!(release(&bytes), None);
        assert_eq!(release(&bytes[..0x204]), None);
        assert_eq!(release(b"\x7fELF"), None);
    }

    #[test]
    fn a_version_outside_of_the_file_is_none() {
        let mut bytes = vec![0; 0x400];
        bytes[MAGIC_AT..MAGIC_AT + 4].copy_from_slice(MAGIC);
        bytes[VERSION_AT..VERSION_AT + 2].copy_from_slice(&0xffffu16.to_le_bytes());
        assert_eq!(release(&bytes), None);
    }
}
