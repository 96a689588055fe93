//! Whose fault is it? From a program that misbehaves to the change that made it so.
//!
//! Every function keeps a log of its changes, whose first n steps can be made again without proving anything. So
//! whoever can tell a good object from a bad one can find the first change that makes it bad: by bisection, first over
//! functions, then over the log. That change is banned, and the passes go on from before it. In the worst case the
//! function stays as it was.

use bpf_object::{FuncId, Object, WriteOptions};
use bpf_passes::Settings;

use crate::candidate::Candidate;
use crate::error::DriverError;
use crate::module::{Module, is_program};
use crate::pool::on_deep_stack;

/// Whether an object, of which these are the bytes, is good as far as the program in question goes; `None` if there is no
/// time to find out.
pub(crate) type IsGood<'a> = &'a dyn Fn(&Object, &[u8]) -> Option<bool>;

/// What mending needs to know of the run it happens in.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) module: &'a Module,
    pub(crate) settings: &'a Settings,
    pub(crate) write: &'a WriteOptions,
    /// What a function is told that is given up.
    pub(crate) why: &'a str,
    /// Whether passes go on after a change was taken back.
    pub(crate) go_on: bool,
}

/// A change that was taken back.
pub(crate) struct Blamed {
    /// The pass or rule that proposed it; `None` if it is how blocks are cut and ordered, or the function as a whole.
    pub(crate) by: Option<&'static str>,
    /// The function without the change, before the passes went on.
    pub(crate) good: Candidate,
    /// Its listing then, and with the change.
    pub(crate) listings: [Vec<String>; 2],
}

/// The changed functions that may run when a program of this name does.
pub(crate) fn suspects(module: &Module, candidates: &[Candidate], name: &str) -> Vec<usize> {
    let named = |f: &FuncId| is_program(&module.object, f.0) && candidates[f.0].report.name == name;
    let run = module.object.run_with((0..candidates.len()).map(FuncId).filter(named));
    run.into_iter().map(|f| f.0).filter(|i| candidates[*i].body.is_some()).collect()
}

/// The function whose original body alone makes the object good again. None if it takes more than one, or time is up.
pub(crate) fn convict(
    is_good: IsGood,
    object: &Object,
    candidates: &[Candidate],
    suspects: &[usize],
    write: &WriteOptions,
) -> Result<Option<usize>, DriverError> {
    if let [only] = suspects {
        return Ok(Some(*only));
    }
    for &i in suspects {
        let mut trial = object.clone();
        trial.reset_body(FuncId(candidates[i].id));
        match is_good(&trial, &trial.write(write)?.bytes) {
            Some(true) => return Ok(Some(i)),
            Some(false) => {}
            None => break,
        }
    }
    Ok(None)
}

/// Finds a change before which the object is good and after which it is not, bans it, and lets the passes go on from
/// before it. When time is up before it is found, the function stays without any change that may be the one.
pub(crate) fn mend(
    is_good: IsGood,
    cx: Context,
    object: &mut Object,
    c: &mut Candidate,
) -> Result<Blamed, DriverError> {
    let Context { module, settings, write, .. } = cx;
    // What the global passes have made goes first, if it is not good by itself.
    if let Some(plain) = c.without_global(module, settings) {
        let mut o = object.clone();
        let mut start = c.clone();
        start.rewind(module, settings, 0);
        start.place(&mut o)?;
        if is_good(&o, &o.write(write)?.bytes) != Some(true) {
            let listings = [plain.report.listing_after.clone(), start.report.listing_after];
            *c = plain.clone();
            c.place(object)?;
            return Ok(Blamed { by: Some("ssa"), listings, good: plain });
        }
    }
    let rewound = |n: usize| {
        let mut trial = c.clone();
        trial.rewind(module, settings, n);
        trial
    };
    let (mut good, mut bad) = (0usize, c.steps().len());
    while bad - good > 1 {
        let mid = good + (bad - good) / 2;
        let mut o = object.clone();
        rewound(mid).place(&mut o)?;
        match is_good(&o, &o.write(write)?.bytes) {
            Some(true) => good = mid,
            Some(false) => bad = mid,
            None => {
                let (good, last) = (rewound(good), c.report.listing_after.clone());
                *c = good.clone();
                c.place(object)?;
                return Ok(Blamed { by: None, listings: [good.report.listing_after.clone(), last], good });
            }
        }
    }
    let last_good = rewound(good);
    let listings = [last_good.report.listing_after.clone(), rewound(bad).report.listing_after];
    let mut blamed = Blamed { by: None, good: last_good, listings };
    let guilty = c.steps().get(bad.wrapping_sub(1)).map(|step| step.rewrite().map(|r| r.by));
    match guilty {
        Some(by) => {
            blamed.by = by;
            c.ban(bad);
            c.rewind(module, settings, good);
            if cx.go_on {
                on_deep_stack(|| c.run_passes(module, settings));
            }
        }
        None => give_up(cx, object, c)?,
    }
    c.place(object)?;
    Ok(blamed)
}

/// The function stays as it was.
pub(crate) fn give_up(cx: Context, object: &mut Object, c: &mut Candidate) -> Result<(), DriverError> {
    c.revert(cx.module, cx.settings, cx.why);
    c.place(object)
}
