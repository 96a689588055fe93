//! The part of the Python package that is written in Rust; `bpf_opt/__init__.py` is what users see.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use bpf_opt::{Goal, Hook, Observer, Options};
use pyo3::create_exception;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

create_exception!(_bpf_opt, Error, PyValueError, "What cannot be read, or asks for what is not there.");

/// How often Ctrl-C is looked for.
const OFTEN: Duration = Duration::from_millis(50);

/// Takes what happens to the thread that Python waits on.
struct Watched {
    lines: Mutex<Option<mpsc::Sender<String>>>,
    stop: Arc<AtomicBool>,
}

impl Watched {
    fn say(&self, line: String) {
        if let Some(lines) = &*self.lines.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = lines.send(line);
        }
    }
}

impl Observer for Watched {
    fn function(&self, index: usize, count: usize, name: &str, slots: usize) {
        self.say(format!("function {} of {count}: {name}, {slots} slots", index + 1));
    }

    fn phase(&self, what: &str) {
        self.say(what.to_owned());
    }

    fn stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Works on a thread of its own, without Python's lock, until it is done or Python is interrupted. What is then still at work ends
/// by itself soon, and nobody waits for it.
fn waiting<T: Send + 'static>(
    py: Python<'_>,
    progress: Option<Py<PyAny>>,
    work: impl FnOnce(&Watched) -> Result<T, bpf_opt::Error> + Send + 'static,
) -> PyResult<T> {
    let stop = Arc::new(AtomicBool::new(false));
    let (lines, said) = mpsc::channel();
    let watched = Watched { lines: Mutex::new(progress.is_some().then_some(lines)), stop: stop.clone() };
    let (done, result) = mpsc::channel();
    // Shared with whoever holds no lock of Python's.
    let result = Mutex::new(result);
    std::thread::spawn(move || {
        let outcome = work(&watched);
        let _ = done.send(outcome);
    });
    loop {
        let next = py.detach(|| result.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(OFTEN));
        let told = said.try_iter().try_for_each(|line: String| match &progress {
            Some(progress) => progress.call1(py, (line,)).map(drop),
            None => Ok(()),
        });
        if let Err(e) = told.and_then(|()| py.check_signals()) {
            stop.store(true, Ordering::Relaxed);
            return Err(e);
        }
        match next {
            Ok(outcome) => return outcome.map_err(|e| Error::new_err(e.to_string())),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => return Err(Error::new_err("internal error")),
        }
    }
}

fn seconds(n: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(n).map_err(|_| PyValueError::new_err(format!("time_limit={n}: no time")))
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn optimize<'py>(
    py: Python<'py>,
    object: Vec<u8>,
    goal: &str,
    level: u8,
    time_limit: f64,
    seed: u64,
    jobs: usize,
    kernel: bool,
    run_check: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<(Bound<'py, PyBytes>, String, usize, usize)> {
    let goal = match goal {
        "size" => Goal::Size,
        "latency" => Goal::latency(),
        "verifier" => Goal::Verifier,
        other => return Err(PyValueError::new_err(format!("goal={other:?}: size, latency or verifier"))),
    };
    if !(1..=4).contains(&level) {
        return Err(PyValueError::new_err(format!("level={level}: 1 to 4")));
    }
    let leveled = Options { goal, ..Options::default() }.at_level(level);
    let options =
        Options { time_limit: seconds(time_limit)?, seed, jobs: jobs.max(1), kernel, run_check, ..leveled };
    let done = waiting(py, progress, move |watched| bpf_opt::optimize_with(&object, &options, watched))?;
    let (before, after) = done.slots();
    Ok((PyBytes::new(py, &done.object), done.report_json(), before, after))
}

#[pyfunction]
fn verify(py: Python<'_>, a: Vec<u8>, b: Vec<u8>, time_limit: f64, kernel: bool) -> PyResult<(bool, bool, String)> {
    let options = Options { time_limit: seconds(time_limit)?, kernel, ..Options::default() };
    let verified = waiting(py, None, move |_| bpf_opt::verify(&a, &b, &options))?;
    Ok((verified.is_equal(), verified.is_different(), bpf_opt::verified_json(&verified)))
}

#[pyfunction]
fn check(py: Python<'_>, object: Vec<u8>, program_type: Option<String>) -> PyResult<String> {
    let all = waiting(py, None, move |_| bpf_opt::check(&object, program_type.as_deref()))?;
    Ok(bpf_opt::checked_json(&all))
}

#[pyfunction]
fn filter<'py>(py: Python<'py>, text: String, hook: &str) -> PyResult<Bound<'py, PyBytes>> {
    let hook = match hook {
        "xdp" => Hook::Xdp,
        "tc" => Hook::Tc,
        "cgroup-skb" => Hook::CgroupSkb,
        "socket" => Hook::Socket,
        other => return Err(PyValueError::new_err(format!("hook={other:?}: xdp, tc, cgroup-skb or socket"))),
    };
    Ok(PyBytes::new(py, &waiting(py, None, move |_| bpf_opt::filter(&text, hook))?))
}

#[pymodule]
fn _bpf_opt(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("Error", m.py().get_type::<Error>())?;
    m.add_function(wrap_pyfunction!(optimize, m)?)?;
    m.add_function(wrap_pyfunction!(verify, m)?)?;
    m.add_function(wrap_pyfunction!(check, m)?)?;
    m.add_function(wrap_pyfunction!(filter, m)?)
}
