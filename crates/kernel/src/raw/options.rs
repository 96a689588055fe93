//! How a raw program is loaded: what the kernel is told beside its type and its instructions.

/// How to load a raw program.
#[derive(Debug, Clone)]
pub struct RawOptions {
    /// The program's licence; GPL opens all helpers.
    pub license: String,
    /// A `enum bpf_attach_type`, for types that need one.
    pub expected_attach_type: u32,
    /// 0 logs a rejection only; 1 always logs; 2 logs every instruction; 4 adds statistics.
    pub log_level: u32,
    /// `BPF_F_*` flags of BPF_PROG_LOAD, such as strict alignment.
    pub flags: u32,
}

impl Default for RawOptions {
    fn default() -> Self {
        Self { license: "GPL".to_owned(), expected_attach_type: 0, log_level: 0, flags: 0 }
    }
}
