//! Z3 as a process that is kept alive: one question at a time, over pipes.
//!
//! It is given a time limit per query. Should it not keep to it, or die, it is killed and another one
//! is started; such a query counts as not decided.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use bpf_prove::smt::Status;

/// Queries after which the process is replaced, so that it cannot grow without end.
const GENERATION: u32 = 4_000;
/// What it may take beyond the limit it was given before it is killed.
const GRACE: Duration = Duration::from_secs(3);
/// Printed by the process after each answer.
const MARK: &str = "bpf-opt-done";

/// A Z3 that answers questions.
pub struct Z3 {
    /// Time spent waiting for answers so far.
    pub spent: Duration,
    limit: Duration,
    running: Option<Running>,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Z3Error {
    /// It had to be killed.
    #[error("z3 does not keep to its time limit")]
    OutOfTime,
    /// The process is gone.
    #[error("z3 has ended")]
    Ended,
    /// It was not started, or does not understand the text.
    #[error("z3: {0}")]
    Failed(String),
}

struct Running {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    asked: u32,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    fn start() -> std::io::Result<Running> {
        let mut child =
            Command::new("z3").arg("-in").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(std::io::Error::other("z3 has no pipes"));
        };
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Running { child, input, lines, asked: 0 })
    }

    fn ask(&mut self, formula: &str, limit: Duration) -> Result<Status, Z3Error> {
        self.asked += 1;
        let limit_ms = limit.as_millis().max(1);
        let question = format!("(reset)\n(set-option :timeout {limit_ms})\n{formula}\n(check-sat)");
        let mut status = None;
        for line in self.send(&question, limit)? {
            match line.trim() {
                "sat" => status = Some(Status::Sat),
                "unsat" => status = Some(Status::Unsat),
                "unknown" | "timeout" => status = Some(Status::Unknown),
                "" => {}
                // Running into the limit is reported as an error, too.
                other if other.contains("canceled") || other.contains("timeout") => status = Some(Status::Unknown),
                other => return Err(Z3Error::Failed(other.to_owned())),
            }
        }
        status.ok_or_else(|| Z3Error::Failed("no answer".into()))
    }

    /// The lines that a command prints.
    fn send(&mut self, command: &str, limit: Duration) -> Result<Vec<String>, Z3Error> {
        let text = format!("{command}\n(echo \"{MARK}\")\n");
        self.input
            .write_all(text.as_bytes())
            .and_then(|()| self.input.flush())
            .map_err(|e| Z3Error::Failed(e.to_string()))?;
        let mut lines = vec![];
        loop {
            match self.lines.recv_timeout(limit + GRACE) {
                Ok(line) if line.trim().trim_matches('"') == MARK => return Ok(lines),
                Ok(line) => lines.push(line),
                Err(RecvTimeoutError::Timeout) => return Err(Z3Error::OutOfTime),
                Err(RecvTimeoutError::Disconnected) => return Err(Z3Error::Ended),
            }
        }
    }
}

impl Z3 {
    /// A Z3 that takes this long for a query at most.
    ///
    /// # Errors
    /// If no `z3` can be run here.
    pub fn new(limit: Duration) -> std::io::Result<Z3> {
        Ok(Z3 { spent: Duration::ZERO, limit, running: Some(Running::start()?) })
    }

    /// Whether what `formula` asserts can be.
    ///
    /// # Errors
    /// What went wrong: text that is not understood, or a process that ended or had to be killed.
    pub fn ask(&mut self, formula: &str) -> Result<Status, Z3Error> {
        if self.running.as_ref().is_some_and(|r| r.asked >= GENERATION) {
            self.running = None;
        }
        let running = match &mut self.running {
            Some(r) => r,
            none => none.insert(Running::start().map_err(|e| Z3Error::Failed(format!("it cannot be started: {e}")))?),
        };
        let started = Instant::now();
        let answer = running.ask(formula, self.limit);
        self.spent += started.elapsed();
        if answer.is_err() {
            self.running = None;
        }
        answer
    }

    /// The bytes of an expression in the assignment that made the last query `sat`, the most significant
    /// first. Its width must be a multiple of 8.
    ///
    /// # Errors
    /// If the process has no such assignment.
    pub fn value(&mut self, expression: &str) -> Result<Vec<u8>, Z3Error> {
        let Some(running) = &mut self.running else { return Err(Z3Error::Ended) };
        let lines = running.send(&format!("(eval {expression} :completion true)"), self.limit)?;
        let text: String = lines.iter().map(|l| l.trim()).collect();
        let digits = text.strip_prefix("#x").ok_or_else(|| Z3Error::Failed(text.clone()))?;
        let byte = |i| digits.get(i..i + 2).and_then(|d| u8::from_str_radix(d, 16).ok());
        (0..digits.len()).step_by(2).map(byte).collect::<Option<_>>().ok_or(Z3Error::Failed(text))
    }

    /// The number an expression of at most 64 bits has there.
    ///
    /// # Errors
    /// As [`Z3::value`].
    pub fn number(&mut self, expression: &str) -> Result<u64, Z3Error> {
        Ok(self.value(expression)?.into_iter().fold(0, |n, b| n << 8 | u64::from(b)))
    }
}
