//! System calls that end at a deadline.
//!
//! The one idea: the verifier looks at each instruction whether its process has a signal to handle, and gives up with
//! EAGAIN if so (`do_check` in kernel/bpf/verifier.c). A second thread waits for the deadline and then sends the first
//! one a signal, again and again until it has come back: a signal that came before the call would be lost otherwise.
//!
//! The signal is SIGURG, which nobody minds: processes that do not handle it ignore it, and those that do (the Go runtime)
//! are used to coming by more of them than were sent for a reason. It needs a handler to interrupt anything. Promises: a
//! handler of the process's own stays in place; otherwise one that does nothing is there from the deadline until the call
//! has come back; the calling thread's signal mask is afterwards what it was; no other signal is touched.

use std::{
    mem::MaybeUninit,
    ptr,
    sync::{Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use libc::{c_int, pthread_t, sigaction, sigset_t};

const SIGNAL: c_int = libc::SIGURG;
/// Between two signals.
const PAUSE: Duration = Duration::from_millis(2);

/// Runs `action` on the calling thread and interrupts its system calls from `deadline` on: what it returns, and whether
/// any signal was sent.
pub(crate) fn until<T>(deadline: Option<Instant>, action: impl FnOnce() -> T) -> (T, bool) {
    let Some(deadline) = deadline else { return (action(), false) };
    let _mask = Unblocked::new();
    // SAFETY: takes nothing, cannot fail.
    let caller = unsafe { libc::pthread_self() };
    thread::scope(|scope| {
        let (finished, watch) = mpsc::channel::<()>();
        let watcher = thread::Builder::new().spawn_scoped(scope, move || interrupt(caller, deadline, &watch));
        let result = action();
        drop(finished);
        let sent = watcher.ok().and_then(|watcher| watcher.join().ok()).unwrap_or(false);
        (result, sent)
    })
}

/// Waits for the deadline, then sends signals until the other end of the channel is gone; whether it sent any.
fn interrupt(caller: pthread_t, deadline: Instant, finished: &mpsc::Receiver<()>) -> bool {
    let over = |wait| finished.recv_timeout(wait) != Err(mpsc::RecvTimeoutError::Timeout);
    if over(deadline.saturating_duration_since(Instant::now())) {
        return false;
    }
    let _handler = Handler::install();
    loop {
        // SAFETY: the thread is alive: it waits for this one to end before it leaves `until`.
        unsafe { libc::pthread_kill(caller, SIGNAL) };
        if over(PAUSE) {
            return true;
        }
    }
}

/// How many threads need the handler, and what was there before it, if that was replaced.
static HANDLER: Mutex<(usize, Option<sigaction>)> = Mutex::new((0, None));

extern "C" fn nothing(_signal: c_int) {}

/// The handler that does nothing, as long as anybody needs it.
struct Handler;

impl Handler {
    fn install() -> Self {
        let mut handler = HANDLER.lock().unwrap_or_else(PoisonError::into_inner);
        if handler.0 == 0 {
            handler.1 = replace_default();
        }
        handler.0 += 1;
        Self
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        let mut handler = HANDLER.lock().unwrap_or_else(PoisonError::into_inner);
        handler.0 -= 1;
        if handler.0 == 0
            && let Some(before) = handler.1.take()
        {
            // A signal that is still on its way is dropped with this: the default is to ignore it.
            // SAFETY: what the kernel gave out earlier.
            unsafe { libc::sigaction(SIGNAL, &before, ptr::null_mut()) };
        }
    }
}

/// Puts the handler in the place of the default; `None` if the process has one of its own, which will do.
fn replace_default() -> Option<sigaction> {
    // SAFETY: all-zero is a valid `struct sigaction`, the pointers are good through the calls, and the handler does nothing.
    unsafe {
        let mut before = MaybeUninit::<sigaction>::zeroed().assume_init();
        if libc::sigaction(SIGNAL, ptr::null(), &mut before) != 0
            || ![libc::SIG_DFL, libc::SIG_IGN].contains(&before.sa_sigaction)
        {
            return None;
        }
        let mut ours = MaybeUninit::<sigaction>::zeroed().assume_init();
        ours.sa_sigaction = nothing as extern "C" fn(c_int) as usize;
        ours.sa_flags = libc::SA_RESTART;
        libc::sigemptyset(&mut ours.sa_mask);
        (libc::sigaction(SIGNAL, &ours, ptr::null_mut()) == 0).then_some(before)
    }
}

/// The calling thread takes the signal, until this is dropped.
struct Unblocked(sigset_t);

impl Unblocked {
    fn new() -> Self {
        // SAFETY: both sets are initialised before they are read, and live through the calls.
        unsafe {
            let mut only = MaybeUninit::<sigset_t>::zeroed().assume_init();
            let mut before = MaybeUninit::<sigset_t>::zeroed().assume_init();
            libc::sigemptyset(&mut only);
            libc::sigaddset(&mut only, SIGNAL);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &only, &mut before);
            Self(before)
        }
    }
}

impl Drop for Unblocked {
    fn drop(&mut self) {
        // SAFETY: the set is the one that `new` was given; the thread is the same, as this is not Send-able elsewhere.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The handler's address, and whether the calling thread blocks the signal.
    fn signals() -> (usize, bool) {
        // SAFETY: as above; both calls only ask.
        unsafe {
            let mut now = MaybeUninit::<sigaction>::zeroed().assume_init();
            libc::sigaction(SIGNAL, ptr::null(), &mut now);
            let mut mask = MaybeUninit::<sigset_t>::zeroed().assume_init();
            libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &mut mask);
            (now.sa_sigaction, libc::sigismember(&mask, SIGNAL) == 1)
        }
    }

    #[test]
    fn a_system_call_ends_at_the_deadline_and_signals_are_as_before() {
        let before = signals();
        let started = Instant::now();
        let ((interrupted, handler), sent) = until(Some(started + Duration::from_millis(30)), || {
            // SAFETY: waits for nothing but time. (A sleep of std's would go on after the signal.)
            let ended = unsafe { libc::poll(ptr::null_mut(), 0, 20_000) };
            (ended != 0, signals().0)
        });
        assert!(interrupted && sent);
        assert!(started.elapsed() < Duration::from_secs(10));
        assert_ne!(handler, libc::SIG_DFL);
        assert_eq!(signals(), before);
    }

    #[test]
    fn what_ends_in_time_sees_no_signal() {
        let before = signals();
        let (handler, sent) = until(Some(Instant::now() + Duration::from_secs(60)), || signals().0);
        assert!(!sent);
        assert_eq!(handler, before.0);
        assert_eq!(until(None, || 7), (7, false));
    }
}
