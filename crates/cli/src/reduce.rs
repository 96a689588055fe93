//! `bpf-opt reduce`: the smallest object on which a command still succeeds.
//!
//! The reduction is the driver's; here is the command: how it is run, ended and believed.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use bpf_driver::{Observer, reduce};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::args::ReduceArgs;
use crate::failure::{Failure, exit};
use crate::files::{self, Destination};
use crate::progress::{Interrupt, Progress};

/// How often a command under way is looked after.
const LOOK: Duration = Duration::from_millis(2);

/// Runs the command.
pub fn run(args: &ReduceArgs) -> Result<u8, Failure> {
    let input = files::read(&args.input)?;
    bpf_object::Object::parse(input.clone()).map_err(|e| Failure::object(&args.input, &e))?;
    let output = Destination::of(&args.output)?;
    let folder = tempfile::tempdir().map_err(|e| Failure::bad_input(format!("no temporary folder: {e}")))?;
    let interrupt = Interrupt::listen();
    let started = Instant::now();
    let test = Test { command: &args.test, limit: args.test_limit, interrupt: &interrupt };
    let candidate = folder.path().join("candidate.o");
    if !test.succeeds(&candidate, &input).map_err(|e| Failure::io("run the test on", &args.input, &e))? {
        if interrupt.requested() {
            return Err(Failure { code: exit::INTERRUPTED, message: "interrupted".into(), hint: None });
        }
        return Err(Failure::bad_input(format!("{}: the test does not succeed on it as it is", args.input.display()))
            .with_hint("the command must exit with 0 on what is to be kept; put `!` before one that must fail"));
    }
    let watch = Watch {
        progress: Progress::new(interrupt.clone(), args.quiet),
        deadline: started.checked_add(args.time_limit),
    };
    let mut broken = None;
    let interesting = |bytes: &[u8]| match test.succeeds(&candidate, bytes) {
        Ok(yes) => yes,
        Err(e) => {
            broken = Some(e);
            false
        }
    };
    let reduced = reduce(&input, interesting, &watch).map_err(|e| Failure::driver(&args.input, &e))?;
    watch.progress.finish();
    if let Some(e) = broken {
        files::complain(format!("bpf-opt: warning: some candidates could not be tested: {e}"));
    }
    output.write(&reduced.bytes, files::mode_of(&args.input))?;
    if !args.quiet {
        let (before, after) = reduced.slots;
        files::complain(format!(
            "{}: {before} slots -> {after} slots, {} candidates in {:.1} s{}",
            args.output.display(),
            reduced.tests,
            started.elapsed().as_secs_f64(),
            if watch.late() { ", stopped by the time limit" } else { "" }
        ));
    }
    Ok(if interrupt.requested() { exit::INTERRUPTED } else { exit::YES })
}

/// Shows progress, and stops at the deadline.
struct Watch {
    progress: Progress,
    deadline: Option<Instant>,
}

impl Watch {
    fn late(&self) -> bool {
        self.deadline.is_some_and(|d| Instant::now() >= d)
    }
}

impl Observer for Watch {
    fn phase(&self, what: &str) {
        self.progress.phase(what);
    }

    fn stop(&self) -> bool {
        self.progress.stop() || self.late()
    }
}

/// The command that says what is interesting.
struct Test<'a> {
    command: &'a str,
    limit: Duration,
    interrupt: &'a Interrupt,
}

impl Test<'_> {
    /// Writes a candidate and runs the command on it.
    fn succeeds(&self, path: &Path, bytes: &[u8]) -> io::Result<bool> {
        std::fs::write(path, bytes)?;
        let quoted = format!("'{}'", path.display().to_string().replace('\'', r"'\''"));
        let line = match self.command.contains("{}") {
            true => self.command.replace("{}", &quoted),
            false => format!("{} {quoted}", self.command),
        };
        let mut child = Command::new("sh")
            .args(["-c", &line])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // So that it can be ended with all that it has started, and Ctrl-C is for us alone.
            .process_group(0)
            .spawn()?;
        let status = self.wait(&mut child)?;
        Ok(status.is_some_and(|s| s.success()))
    }

    /// Waits for the end; `None` if the command had to be ended.
    fn wait(&self, child: &mut Child) -> io::Result<Option<ExitStatus>> {
        let deadline = Instant::now().checked_add(self.limit);
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(Some(status));
            }
            if self.interrupt.requested() || deadline.is_some_and(|d| Instant::now() >= d) {
                if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                    let _ = kill_process_group(pid, Signal::KILL);
                }
                child.wait()?;
                return Ok(None);
            }
            std::thread::sleep(LOOK);
        }
    }
}
