//! The library for C: `include/bpf_opt.h`, which a test generates anew from this file.
//!
//! Whatever is returned in a [`BpfOptBuffer`] belongs to the caller, who gives it back with [`bpf_opt_free`]. All functions
//! may be called from several threads at a time.

// What C hands over cannot be checked: each function says what has to hold of its pointers.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::time::Duration;

use bpf_opt::{Error, Goal, Hook, Options};

/// Bytes, or a text that ends with a zero byte (which `len` does not count).
#[repr(C)]
pub struct BpfOptBuffer {
    /// The first byte; null if there is nothing.
    pub data: *mut u8,
    /// How many.
    pub len: usize,
}

/// What to minimize.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum BpfOptGoal {
    /// Fewest instruction slots.
    Size = 0,
    /// Fewest estimated nanoseconds.
    Latency = 1,
    /// Fewest instructions for the kernel's verifier to process.
    Verifier = 2,
}

/// How to optimize. Begin with `bpf_opt_defaults()`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct BpfOptOptions {
    /// What to minimize.
    pub goal: BpfOptGoal,
    /// How much to do, from 1 to 4, as `bpf-opt opt -O`.
    pub level: u8,
    /// Time for the whole object.
    pub seconds: f64,
    /// Seed of everything random.
    pub seed: u64,
    /// Worker threads.
    pub jobs: u32,
    /// Whether the running kernel's verifier is asked.
    pub kernel: bool,
    /// Whether original and result are run in it to compare them.
    pub run_check: bool,
}

/// What came of a call.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BpfOptStatus {
    /// Done; of `bpf_opt_verify`: proven equal.
    Yes = 0,
    /// Of `bpf_opt_verify`: different. Of `bpf_opt_check`: not safe.
    No = 1,
    /// Bad input: the message says what is wrong.
    BadInput = 2,
    /// Neither proven nor refuted.
    Unknown = 3,
    /// A fault of the library.
    Internal = 70,
}

/// Where a filter's program runs.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum BpfOptHook {
    /// The driver.
    Xdp = 0,
    /// A classifier.
    Tc = 1,
    /// A control group's packets.
    CgroupSkb = 2,
    /// A socket.
    Socket = 3,
}

/// The options of `bpf-opt opt -O2`, with one worker thread.
#[unsafe(no_mangle)]
pub extern "C" fn bpf_opt_defaults() -> BpfOptOptions {
    BpfOptOptions { goal: BpfOptGoal::Size, level: 2, seconds: 10.0, seed: 1, jobs: 1, kernel: true, run_check: true }
}

/// Gives a buffer back, which is empty afterwards. A null pointer, or an empty buffer, is left alone.
///
/// # Safety
/// `buffer` is null, or points to a buffer that a function of this library has filled, or to an empty one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bpf_opt_free(buffer: *mut BpfOptBuffer) {
    // SAFETY: said above.
    let Some(buffer) = (unsafe { buffer.as_mut() }) else { return };
    if !buffer.data.is_null() {
        let whole = std::ptr::slice_from_raw_parts_mut(buffer.data, buffer.len + 1);
        // SAFETY: `fill` made it of a boxed slice with one byte more than it says.
        drop(unsafe { Box::from_raw(whole) });
    }
    *buffer = BpfOptBuffer { data: std::ptr::null_mut(), len: 0 };
}

/// Optimizes an object of `len` bytes. `result` gets the object; `report`, if it is not null, what became of each function, as
/// JSON; `message`, if it is not null, what is wrong with bad input.
///
/// # Safety
/// `object` points to `len` bytes. `result` points to a buffer, `report` and `message` are null or do so; what is in them is
/// overwritten.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bpf_opt_optimize(
    object: *const u8,
    len: usize,
    options: BpfOptOptions,
    result: *mut BpfOptBuffer,
    report: *mut BpfOptBuffer,
    message: *mut BpfOptBuffer,
) -> BpfOptStatus {
    // SAFETY: said above.
    let object = unsafe { bytes(object, len) };
    let done = guarded(|| bpf_opt::optimize(object, &of(options)));
    match done {
        Ok(done) => {
            // SAFETY: said above.
            unsafe {
                fill(result, done.object.clone());
                fill(report, done.report_json().into_bytes());
                fill(message, Vec::new());
            }
            BpfOptStatus::Yes
        }
        // SAFETY: said above.
        Err(e) => unsafe { failed(&e, &[result, report], message) },
    }
}

/// Proves that two objects behave the same, or finds that they do not. `report`, if it is not null, gets the verdicts in words.
///
/// # Safety
/// `a` and `b` point to so many bytes. `report` and `message` are null or point to buffers; what is in them is overwritten.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bpf_opt_verify(
    a: *const u8,
    a_len: usize,
    b: *const u8,
    b_len: usize,
    options: BpfOptOptions,
    report: *mut BpfOptBuffer,
    message: *mut BpfOptBuffer,
) -> BpfOptStatus {
    // SAFETY: said above.
    let (a, b) = unsafe { (bytes(a, a_len), bytes(b, b_len)) };
    match guarded(|| bpf_opt::verify(a, b, &of(options))) {
        Ok(verified) => {
            let mut lines: Vec<String> =
                verified.functions.iter().map(|(name, verdict)| format!("{name}: {verdict:?}")).collect();
            lines.extend(verified.differences.iter().chain(&verified.unknowns).cloned());
            // SAFETY: said above.
            unsafe {
                fill(report, lines.join("\n").into_bytes());
                fill(message, Vec::new());
            }
            match (verified.is_equal(), verified.is_different()) {
                (true, _) => BpfOptStatus::Yes,
                (_, true) => BpfOptStatus::No,
                _ => BpfOptStatus::Unknown,
            }
        }
        // SAFETY: said above.
        Err(e) => unsafe { failed(&e, &[report], message) },
    }
}

/// Judges the safety of all programs without a kernel. `report`, if it is not null, gets a line for each.
///
/// # Safety
/// As of `bpf_opt_optimize`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bpf_opt_check(
    object: *const u8,
    len: usize,
    report: *mut BpfOptBuffer,
    message: *mut BpfOptBuffer,
) -> BpfOptStatus {
    use bpf_opt::Verdict;
    // SAFETY: said above.
    let object = unsafe { bytes(object, len) };
    match guarded(|| bpf_opt::check(object, None)) {
        Ok(all) => {
            let line = |c: &bpf_opt::Checked| {
                let problem = c.problem.as_deref().map_or_else(String::new, |what| format!(": {what}"));
                format!("{}: {:?}{problem}", c.name, c.verdict)
            };
            let lines: Vec<String> = all.iter().map(line).collect();
            // SAFETY: said above.
            unsafe {
                fill(report, lines.join("\n").into_bytes());
                fill(message, Vec::new());
            }
            let any = |verdict| all.iter().any(|c| c.verdict == verdict);
            match (any(Verdict::Violation), any(Verdict::Unknown)) {
                (true, _) => BpfOptStatus::No,
                (_, true) => BpfOptStatus::Unknown,
                _ => BpfOptStatus::Yes,
            }
        }
        // SAFETY: said above.
        Err(e) => unsafe { failed(&e, &[report], message) },
    }
}

/// Compiles a filter of tcpdump's language to an object that lets pass what matches and drops the rest.
///
/// # Safety
/// `text` is a text that ends with a zero byte. `result` points to a buffer, `message` is null or does so; what is in them is
/// overwritten.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bpf_opt_filter(
    text: *const c_char,
    hook: BpfOptHook,
    result: *mut BpfOptBuffer,
    message: *mut BpfOptBuffer,
) -> BpfOptStatus {
    // SAFETY: said above.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let hook = match hook {
        BpfOptHook::Xdp => Hook::Xdp,
        BpfOptHook::Tc => Hook::Tc,
        BpfOptHook::CgroupSkb => Hook::CgroupSkb,
        BpfOptHook::Socket => Hook::Socket,
    };
    match guarded(|| bpf_opt::filter(&text, hook)) {
        Ok(object) => {
            // SAFETY: said above.
            unsafe {
                fill(result, object);
                fill(message, Vec::new());
            }
            BpfOptStatus::Yes
        }
        // SAFETY: said above.
        Err(e) => unsafe { failed(&e, &[result], message) },
    }
}

/// Nothing is unwound into C.
fn guarded<T>(f: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or(Err(Error::Internal))
}

fn of(options: BpfOptOptions) -> Options {
    let goal = match options.goal {
        BpfOptGoal::Size => Goal::Size,
        BpfOptGoal::Latency => Goal::latency(),
        BpfOptGoal::Verifier => Goal::Verifier,
    };
    let default = Options { goal, ..Options::default() }.at_level(options.level);
    Options {
        time_limit: Duration::try_from_secs_f64(options.seconds).unwrap_or(default.time_limit),
        seed: options.seed,
        jobs: options.jobs.max(1) as usize,
        kernel: options.kernel,
        run_check: options.run_check,
        ..default
    }
}

/// # Safety
/// `data` points to `len` bytes, or `len` is 0.
unsafe fn bytes<'a>(data: *const u8, len: usize) -> &'a [u8] {
    if data.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: said above.
    unsafe { slice::from_raw_parts(data, len) }
}

/// Hands out bytes with a zero byte behind them.
///
/// # Safety
/// `buffer` is null, or points to a buffer.
unsafe fn fill(buffer: *mut BpfOptBuffer, mut bytes: Vec<u8>) {
    // SAFETY: said above.
    let Some(buffer) = (unsafe { buffer.as_mut() }) else { return };
    let len = bytes.len();
    bytes.push(0);
    *buffer = BpfOptBuffer { data: Box::into_raw(bytes.into_boxed_slice()).cast(), len };
}

/// Tells what went wrong, and leaves results empty.
///
/// # Safety
/// As of [`fill`], for all of them.
unsafe fn failed(error: &Error, results: &[*mut BpfOptBuffer], message: *mut BpfOptBuffer) -> BpfOptStatus {
    for result in results {
        // SAFETY: said above.
        if let Some(result) = unsafe { result.as_mut() } {
            *result = BpfOptBuffer { data: std::ptr::null_mut(), len: 0 };
        }
    }
    // SAFETY: said above.
    unsafe { fill(message, error.to_string().into_bytes()) };
    if matches!(error, Error::Internal) { BpfOptStatus::Internal } else { BpfOptStatus::BadInput }
}
