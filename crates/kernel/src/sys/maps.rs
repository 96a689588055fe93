//! Maps: making them, reading and writing them, mapping their memory.

use std::{
    ffi::{c_int, c_long, c_void},
    io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    ptr::{self, NonNull},
    slice,
    sync::atomic::AtomicU64,
};

use bpf_platform::maps::is_per_cpu;
use libbpf_sys as bpf;

use super::{checked, owned, pointer, pointer_mut, possible_cpus};

unsafe extern "C" {
    fn mmap(at: *mut c_void, length: usize, access: c_int, flags: c_int, fd: c_int, offset: c_long) -> *mut c_void;
    fn munmap(at: *mut c_void, length: usize) -> c_int;
}

/// The shape of a map, as the kernel tells it.
#[derive(Debug)]
pub(crate) struct MapShape {
    pub(crate) kind: u32,
    pub(crate) key_size: u32,
    pub(crate) value_size: u32,
    pub(crate) max_entries: u32,
    /// What the kernel copies for one value: those of all CPUs, for a per-CPU map.
    pub(crate) value_len: usize,
}

/// A map's descriptor and its shape.
///
/// Invariant: the shape is the kernel's own, so a buffer with its lengths is as long as the kernel thinks.
#[derive(Debug)]
pub(crate) struct Map {
    pub(crate) fd: OwnedFd,
    pub(crate) shape: MapShape,
}

impl Map {
    pub(crate) fn of(fd: OwnedFd) -> io::Result<Self> {
        let mut info = bpf::bpf_map_info::default();
        let mut length = size_of::<bpf::bpf_map_info>() as u32;
        // SAFETY: the kernel writes at most `length` bytes of `info`.
        checked(unsafe { bpf::bpf_map_get_info_by_fd(fd.as_raw_fd(), &mut info, &mut length) })?;
        let one = info.value_size as usize;
        let value_len = if is_per_cpu(info.type_) { one.next_multiple_of(8) * possible_cpus()? } else { one };
        let shape = MapShape {
            kind: info.type_,
            key_size: info.key_size,
            value_size: info.value_size,
            max_entries: info.max_entries,
            value_len,
        };
        Ok(Self { fd, shape })
    }

    pub(crate) fn update(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.check_key(key);
        self.check_value(value);
        // SAFETY: the kernel reads a key and a value, whose lengths were just checked.
        checked(unsafe { bpf::bpf_map_update_elem(self.fd.as_raw_fd(), pointer(key), pointer(value), 0) }).map(drop)
    }

    pub(crate) fn lookup(&self, key: &[u8], value: &mut [u8]) -> io::Result<()> {
        self.check_key(key);
        self.check_value(value);
        // SAFETY: the kernel reads a key and writes a value, whose lengths were just checked.
        checked(unsafe { bpf::bpf_map_lookup_elem(self.fd.as_raw_fd(), pointer(key), pointer_mut(value)) }).map(drop)
    }

    pub(crate) fn delete(&self, key: &[u8]) -> io::Result<()> {
        self.check_key(key);
        // SAFETY: the kernel reads a key, whose length was just checked.
        checked(unsafe { bpf::bpf_map_delete_elem(self.fd.as_raw_fd(), pointer(key)) }).map(drop)
    }

    pub(crate) fn next_key(&self, last: Option<&[u8]>, next: &mut [u8]) -> io::Result<()> {
        last.into_iter().for_each(|last| self.check_key(last));
        self.check_key(next);
        let last = last.map_or(ptr::null(), pointer);
        // SAFETY: the kernel reads a key, or null for the first, and writes one; the lengths were just checked.
        checked(unsafe { bpf::bpf_map_get_next_key(self.fd.as_raw_fd(), last, pointer_mut(next)) }).map(drop)
    }

    /// Takes the next element off a queue or a stack, which have no keys.
    pub(crate) fn pop(&self, value: &mut [u8]) -> io::Result<()> {
        self.check_key(&[]);
        self.check_value(value);
        let (fd, value) = (self.fd.as_raw_fd(), pointer_mut(value));
        // SAFETY: there is no key, as was just checked, and the kernel writes a value, whose length was, too.
        checked(unsafe { bpf::bpf_map_lookup_and_delete_elem(fd, ptr::null(), value) }).map(drop)
    }

    /// Takes all records out of a ring buffer.
    pub(crate) fn drain(&self) -> io::Result<Vec<Vec<u8>>> {
        /// Keeps one record.
        unsafe extern "C" fn keep(records: *mut c_void, data: *mut c_void, size: bpf::size_t) -> c_int {
            // SAFETY: `drain` passes its list, which nobody else uses meanwhile, and libbpf a record of this size.
            unsafe {
                let records = &mut *records.cast::<Vec<Vec<u8>>>();
                records.push(slice::from_raw_parts(data.cast::<u8>(), size as usize).to_vec());
            }
            0
        }
        let mut records: Vec<Vec<u8>> = Vec::new();
        // SAFETY: the list lives until the consumer is freed, and only `keep` uses it until then; the consumer is freed
        // once. libbpf maps the memory of the buffer by the kernel's own shape of it.
        unsafe {
            let list = (&raw mut records).cast();
            let consumer = bpf::ring_buffer__new(self.fd.as_raw_fd(), Some(keep), list, ptr::null());
            let consumer = NonNull::new(consumer).ok_or_else(io::Error::last_os_error)?;
            let outcome = checked(bpf::ring_buffer__consume(consumer.as_ptr()));
            bpf::ring_buffer__free(consumer.as_ptr());
            outcome?;
        }
        Ok(records)
    }

    fn check_key(&self, key: &[u8]) {
        assert_eq!(key.len(), self.shape.key_size as usize, "a key has the length that the kernel will access");
    }

    fn check_value(&self, value: &[u8]) {
        assert_eq!(value.len(), self.shape.value_len, "a value has the length that the kernel will access");
    }
}

/// Memory of a map, as this process and programs in the kernel see it at the same time.
///
/// Invariant: `words` words from `at` are mapped, readable and writable, until this is dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    at: NonNull<AtomicU64>,
    words: usize,
}

unsafe impl Send for Mapping {}

unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `words` words (more than none) of a map that has `BPF_F_MMAPABLE`.
    pub(crate) fn of(map: BorrowedFd<'_>, words: usize) -> io::Result<Self> {
        /// `PROT_READ | PROT_WRITE` and `MAP_SHARED` (asm-generic/mman-common.h, linux/mman.h).
        const READ_WRITE: c_int = 1 | 2;
        const SHARED: c_int = 1;
        let length = words * size_of::<AtomicU64>();
        // SAFETY: asks for new memory at an address of the kernel's choice, which nothing else uses.
        let at = unsafe { mmap(ptr::null_mut(), length, READ_WRITE, SHARED, map.as_raw_fd(), 0) };
        /// `MAP_FAILED`.
        const FAILED: usize = usize::MAX;
        match NonNull::new(at.cast()) {
            Some(at) if at.as_ptr() as usize != FAILED => Ok(Self { at, words }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: a page's beginning, so aligned; mapped as long as `self`, by the invariant; whoever else accesses it
        // does so behind this process's back, which atomics allow.
        unsafe { slice::from_raw_parts(self.at.as_ptr(), self.words) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `of` with this length, and no reference outlives `self`.
        unsafe { munmap(self.at.as_ptr().cast(), self.words * size_of::<AtomicU64>()) };
    }
}

pub(crate) fn create_map(
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner: Option<BorrowedFd<'_>>,
    types: Option<(BorrowedFd<'_>, u32, u32)>,
) -> io::Result<OwnedFd> {
    let sz = size_of::<bpf::bpf_map_create_opts>() as _;
    let inner_map_fd = inner.map_or(0, |fd| fd.as_raw_fd() as u32);
    let (btf_fd, btf_key_type_id, btf_value_type_id) =
        types.map_or((0, 0, 0), |(b, k, v)| (b.as_raw_fd() as u32, k, v));
    let options = bpf::bpf_map_create_opts {
        sz,
        map_flags,
        inner_map_fd,
        btf_fd,
        btf_key_type_id,
        btf_value_type_id,
        ..Default::default()
    };
    // SAFETY: the name may be null; the options are alive through the call.
    owned(unsafe { bpf::bpf_map_create(kind, ptr::null(), key_size, value_size, max_entries, &options) })
}

/// Makes a map's contents final (BPF_MAP_FREEZE).
pub(crate) fn freeze_map(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes a descriptor that is open.
    checked(unsafe { bpf::bpf_map_freeze(fd.as_raw_fd()) }).map(drop)
}
