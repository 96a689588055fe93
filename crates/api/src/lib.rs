//! Optimizes eBPF objects, as the command `bpf-opt` does: a compiled object in, a smaller or faster one out that takes its place,
//! every change proven equal and checked by the running kernel's verifier.
//!
//! ```no_run
//! let object = std::fs::read("prog.o")?;
//! let options = bpf_opt::Options::default().at_level(2);
//! let done = bpf_opt::optimize(&object, &options)?;
//! println!("{} slots before, {} after", done.slots().0, done.slots().1);
//! assert!(bpf_opt::verify(&object, &done.object, &options)?.is_equal());
//! std::fs::write("prog.opt.o", &done.object)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Nothing here prints, writes files, or ends the process. All functions may be called from several threads at a time.

mod check;
mod error;

pub use bpf_driver::{Goal, Observer, Options, Report, Unfit, UnfitBecause, VerifyReport, Yardstick};
pub use bpf_filter::Hook;
pub use bpf_specialize::{Contents, Declared, Done as Specialized, Form, Given};
pub use check::{Checked, Verdict, check};
pub use error::Error;

use bpf_driver::on_deep_stack;

/// An optimized object.
#[derive(Clone, Debug)]
pub struct Optimized {
    /// The object file.
    pub object: Vec<u8>,
    /// What became of each function.
    pub report: Report,
}

impl Optimized {
    /// Slots of all functions before and after.
    #[must_use]
    pub fn slots(&self) -> (usize, usize) {
        self.report.slots()
    }

    /// The report as JSON, with the fields that `bpf-opt opt --json` has.
    #[must_use]
    pub fn report_json(&self) -> String {
        serde_json::to_string(&self.report).unwrap_or_default()
    }
}

/// Nobody looks.
struct Unseen;

impl Observer for Unseen {}

/// Optimizes an object.
///
/// # Errors
/// If it is no BPF object, or the options name what it does not have. A function that is not understood is no error: it stays as
/// it is, and the report says why.
pub fn optimize(object: &[u8], options: &Options) -> Result<Optimized, Error> {
    optimize_with(object, options, &Unseen)
}

/// The same, watched by an observer, who may also stop it: the best result so far is then returned.
///
/// # Errors
/// As [`optimize`].
pub fn optimize_with(object: &[u8], options: &Options, observer: &dyn Observer) -> Result<Optimized, Error> {
    let done = on_deep_stack(|| bpf_driver::optimize(object, options, observer)).ok_or(Error::Internal)?;
    let (object, report) = done?;
    Ok(Optimized { object, report })
}

/// Proves that two objects behave the same, or finds an input on which they do not.
///
/// # Errors
/// If one of them is no BPF object.
pub fn verify(a: &[u8], b: &[u8], options: &Options) -> Result<VerifyReport, Error> {
    Ok(on_deep_stack(|| bpf_driver::verify(a, b, options)).ok_or(Error::Internal)??)
}

/// A comparison as JSON: `functions` (pairs of name and verdict), `differences`, `unknowns`, `notes`, `refused`, `runs`, `seconds`.
#[must_use]
pub fn verified_json(report: &VerifyReport) -> String {
    serde_json::to_string(report).unwrap_or_default()
}

/// Verdicts as JSON: a list of `name`, `verdict`, `problem`.
#[must_use]
pub fn checked_json(all: &[Checked]) -> String {
    serde_json::to_string(all).unwrap_or_default()
}

/// The object for declared constants and frozen maps, before it is optimized.
///
/// What counts is what the kernel says of the object that is given: [`Yardstick::unfit`] tells what it does not take any more, which
/// another [`Form`] may help, and [`Options::original`] has [`optimize`] and [`verify`] tell figures and verdicts of it.
///
/// # Errors
/// If something declared is not there, does not fit, or may be changed by the object itself.
pub fn specialize(object: &[u8], declared: &Declared) -> Result<Specialized, Error> {
    Ok(on_deep_stack(|| bpf_specialize::specialize(object, declared)).ok_or(Error::Internal)??)
}

/// Compiles a filter of tcpdump's language to an object for a hook, which lets pass what matches and drops the rest.
///
/// # Errors
/// If the text is no filter, or asks for what the hook does not have.
pub fn filter(text: &str, hook: Hook) -> Result<Vec<u8>, Error> {
    let link_type = match hook {
        Hook::CgroupSkb => bpf_filter::LinkType::RAW,
        _ => bpf_filter::LinkType::EN10MB,
    };
    let options = bpf_filter::Options { link_type, source: hook.source(), ..bpf_filter::Options::default() };
    let filter = bpf_filter::compile(text, &options).map_err(|e| Error::Filter(e.render(text)))?;
    filter.object(hook, bpf_filter::Actions::passing(hook)).map_err(|e| Error::Filter(e.to_string()))
}
