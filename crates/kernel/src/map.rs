//! A map as bytes: keys in, values out.
//!
//! The crate knows no key or value types; a map has lengths and that is all. Per-CPU maps hand out the values of all
//! CPUs in a row, each rounded up to eight bytes, as the kernel does: see [`Map::value_len`].

use std::{
    io,
    ops::Deref,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    sync::atomic::AtomicU64,
};

use crate::{Btf, KernelError, sys};

/// One element: its key and its value.
pub type Entry = (Vec<u8>, Vec<u8>);

/// A map in the kernel. It lives as long as this value, or a program that uses it.
#[derive(Debug)]
pub struct Map {
    inner: sys::maps::Map,
    name: String,
}

impl Map {
    /// Creates a map; `kind` is an `enum bpf_map_type`.
    pub fn create(kind: u32, key_size: u32, value_size: u32, max_entries: u32) -> Result<Self, KernelError> {
        Self::create_with(kind, key_size, value_size, max_entries, 0, None)
    }

    /// The same with `BPF_F_…` flags, and, for a map of maps, one like those in it.
    pub fn create_with(
        kind: u32,
        key_size: u32,
        value_size: u32,
        max_entries: u32,
        flags: u32,
        inner: Option<&Map>,
    ) -> Result<Self, KernelError> {
        let fd = sys::maps::create_map(kind, key_size, value_size, max_entries, flags, inner.map(AsFd::as_fd), None)
            .map_err(KernelError::refused(format!("creating a map of type {kind}")))?;
        Self::described(fd, format!("of type {kind}"))
    }

    /// Creates a map whose keys and values have types of `btf`; locks, timers and kernel pointers need that.
    pub fn create_typed(
        kind: u32,
        key_size: u32,
        value_size: u32,
        max_entries: u32,
        flags: u32,
        (btf, key_type, value_type): (&Btf, u32, u32),
    ) -> Result<Self, KernelError> {
        let types = Some((btf.as_fd(), key_type, value_type));
        let fd = sys::maps::create_map(kind, key_size, value_size, max_entries, flags, None, types)
            .map_err(KernelError::refused(format!("creating a typed map of type {kind}")))?;
        Self::described(fd, format!("of type {kind}"))
    }

    /// Makes the contents final for user space; with `BPF_F_RDONLY_PROG` the verifier then reads them as constants.
    pub fn freeze(&self) -> Result<(), KernelError> {
        sys::maps::freeze_map(self.as_fd()).map_err(self.refused("freezing"))
    }

    pub(crate) fn described(fd: OwnedFd, name: String) -> Result<Self, KernelError> {
        let inner = sys::maps::Map::of(fd).map_err(KernelError::refused(format!("describing map {name}")))?;
        Ok(Self { inner, name })
    }

    /// The name in the object; `.rodata`, `.data`, `.bss` for the maps of global data.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The `enum bpf_map_type`.
    pub fn kind(&self) -> u32 {
        self.inner.shape.kind
    }

    /// Bytes of a key.
    pub fn key_size(&self) -> u32 {
        self.inner.shape.key_size
    }

    /// Bytes of one value, as a program sees it.
    pub fn value_size(&self) -> u32 {
        self.inner.shape.value_size
    }

    /// Bytes of a value here: those of all CPUs for a per-CPU map.
    pub fn value_len(&self) -> usize {
        self.inner.shape.value_len
    }

    /// The most elements it takes.
    pub fn max_entries(&self) -> u32 {
        self.inner.shape.max_entries
    }

    /// The file descriptor, for BPF_PSEUDO_MAP_FD loads in a [`RawProgram`](crate::RawProgram).
    pub fn fd(&self) -> RawFd {
        self.inner.fd.as_raw_fd()
    }

    /// Sets an element.
    pub fn update(&self, key: &[u8], value: &[u8]) -> Result<(), KernelError> {
        self.check("key", key, self.key_size() as usize)?;
        self.check("value", value, self.value_len())?;
        self.inner.update(key, value).map_err(self.refused("updating"))
    }

    /// Reads an element; `None` when there is none.
    pub fn lookup(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KernelError> {
        self.check("key", key, self.key_size() as usize)?;
        let mut value = vec![0; self.value_len()];
        let found = present(self.inner.lookup(key, &mut value)).map_err(self.refused("reading"))?;
        Ok(found.then_some(value))
    }

    /// Removes an element; false when there was none.
    pub fn delete(&self, key: &[u8]) -> Result<bool, KernelError> {
        self.check("key", key, self.key_size() as usize)?;
        present(self.inner.delete(key)).map_err(self.refused("deleting from"))
    }

    /// Takes all values off a queue or a stack, the next one first.
    pub fn pop_all(&self) -> Result<Vec<Vec<u8>>, KernelError> {
        let mut values = Vec::new();
        loop {
            let mut value = vec![0; self.value_len()];
            match present(self.inner.pop(&mut value)).map_err(self.refused("taking from"))? {
                true => values.push(value),
                false => return Ok(values),
            }
        }
    }

    /// Takes all records out of a ring buffer, the oldest first.
    pub fn drain(&self) -> Result<Vec<Vec<u8>>, KernelError> {
        self.inner.drain().map_err(self.refused("reading the records of"))
    }

    /// All keys, in the kernel's order.
    pub fn keys(&self) -> Result<Vec<Vec<u8>>, KernelError> {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        // A hash changed meanwhile may start over: the bound ends that.
        while keys.len() < self.max_entries() as usize {
            let mut next = vec![0; self.key_size() as usize];
            let last = keys.last().map(Vec::as_slice);
            if !present(self.inner.next_key(last, &mut next)).map_err(self.refused("iterating"))? {
                break;
            }
            keys.push(next);
        }
        Ok(keys)
    }

    /// All elements, in the kernel's order.
    pub fn entries(&self) -> Result<Vec<Entry>, KernelError> {
        let mut entries = Vec::new();
        for key in self.keys()? {
            if let Some(value) = self.lookup(&key)? {
                entries.push((key, value));
            }
        }
        Ok(entries)
    }

    /// The memory of an array map with `BPF_F_MMAPABLE` (global data has it), which programs in the kernel access at the
    /// same time. Each element begins at a word of its own (`array_map_mmap`, kernel/bpf/arraymap.c).
    ///
    /// # Errors
    /// Whatever the kernel has against it: the map is of another type, lacks the flag, or is frozen.
    pub fn share(&self) -> Result<SharedWords, KernelError> {
        let words = self.value_size().div_ceil(8) as usize * self.max_entries() as usize;
        sys::maps::Mapping::of(self.as_fd(), words).map(SharedWords).map_err(self.refused("mapping the memory of"))
    }

    fn check(&self, what: &'static str, bytes: &[u8], expected: usize) -> Result<(), KernelError> {
        if bytes.len() == expected {
            return Ok(());
        }
        Err(KernelError::WrongLength { map: self.name.clone(), what, given: bytes.len(), expected })
    }

    fn refused(&self, doing: &str) -> impl FnOnce(io::Error) -> KernelError {
        KernelError::refused(format!("{doing} map {}", self.name))
    }
}

/// Memory of a map, in words of 64 bits: see [`Map::share`]. It stays when the [`Map`] goes.
#[derive(Debug)]
pub struct SharedWords(sys::maps::Mapping);

impl Deref for SharedWords {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        self.0.words()
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.fd.as_fd()
    }
}

/// Tells "there is no such element" from failure.
fn present(outcome: io::Result<()>) -> io::Result<bool> {
    match outcome {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
