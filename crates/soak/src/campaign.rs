//! A campaign: lanes sharing the time that is left, and a state file that says what is done.
//!
//! Units are handed out by need. Every other unit goes to the lane that is furthest behind its target, the ones
//! between to the lane that has had the least time, so that a lane whose units yield nothing cannot starve the rest.
//! Units begun and not finished when the state is written are listed in it and are the first to be done when the
//! campaign goes on: no unit is lost and none counts twice.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::{Lane, Tally};

/// How often the state is written.
const SAVE_EVERY: Duration = Duration::from_secs(10);
/// How often the observer is told.
const TELL_EVERY: Duration = Duration::from_millis(500);
/// Disagreements of a lane that are kept in full.
const KEPT: usize = 200;
/// Bytes of stack of a worker: terms and graphs recurse.
const STACK: usize = 256 << 20;

/// Makes the lane of one worker, or says why it cannot run here.
pub type MakeLane = Box<dyn Fn() -> Result<Box<dyn Lane>, String> + Send + Sync>;

/// A lane as a campaign plans it.
pub struct LanePlan {
    /// Its name.
    pub name: &'static str,
    /// The counter that has a target …
    pub counter: &'static str,
    /// … and what it is to reach in 60 minutes.
    pub per_hour: u64,
    /// Units of a slice.
    pub slice: u64,
    /// Makes it; every worker has one of its own.
    pub make: MakeLane,
}

/// What to do.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Everything random follows from it.
    pub seed: u64,
    /// Time for the campaign, with what earlier runs of it took.
    pub time: Duration,
    /// Worker threads.
    pub jobs: usize,
    /// Where the state is kept; `None`: nowhere.
    pub state: Option<PathBuf>,
    /// Stop when every lane has done this many times its slice.
    pub slices: Option<u64>,
}

/// How far a campaign is, as in the state file.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct CampaignState {
    /// Its seed.
    pub seed: u64,
    /// Seconds it has run.
    pub seconds: f64,
    /// Its lanes.
    pub lanes: BTreeMap<String, LaneState>,
}

/// How far a lane is.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct LaneState {
    /// The first unit nobody has begun.
    pub next: u64,
    /// Units below that are not finished.
    pub begun: BTreeSet<u64>,
    /// Seconds of all workers together.
    pub seconds: f64,
    /// What it found.
    pub tally: Tally,
    /// Why it cannot run here.
    pub cannot: Option<String>,
}

impl CampaignState {
    /// Reads a state file; `None` if there is none.
    ///
    /// # Errors
    /// What is wrong with the file, in words.
    pub fn read(path: &Path) -> Result<Option<CampaignState>, String> {
        match std::fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|e| format!("{}: {e}", path.display())),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(format!("{}: {e}", path.display())),
        }
    }

    /// Writes it, whole or not at all.
    ///
    /// # Errors
    /// What the system says.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder)?;
        let file = tempfile::NamedTempFile::new_in(folder)?;
        serde_json::to_writer_pretty(file.as_file(), self)?;
        file.persist(path).map_err(|e| e.error)?;
        Ok(())
    }

    /// Disagreements of all lanes, with the lane's name.
    pub fn disagreements(&self) -> impl Iterator<Item = (&str, &crate::Disagreement)> {
        self.lanes.iter().flat_map(|(n, l)| l.tally.disagreements.iter().map(move |d| (n.as_str(), d)))
    }
}

struct Shared<'a> {
    plans: &'a [LanePlan],
    settings: &'a Settings,
    started: Instant,
    before: f64,
    state: Mutex<CampaignState>,
    handed_out: Mutex<u64>,
    /// Units that an interrupted run began and did not finish.
    left_behind: Mutex<Vec<(usize, u64)>>,
}

/// Runs the lanes until the time is over, the slices are done or `stop` is set. Units under way are finished.
///
/// `tell` is called now and then with the state.
///
/// # Errors
/// A state file that cannot be read or written, in words.
pub fn run(
    plans: &[LanePlan],
    settings: &Settings,
    stop: &AtomicBool,
    tell: &dyn Fn(&CampaignState),
) -> Result<CampaignState, String> {
    let mut state = match &settings.state {
        Some(path) => CampaignState::read(path)?.unwrap_or_default(),
        None => CampaignState::default(),
    };
    if !state.lanes.is_empty() && state.seed != settings.seed {
        return Err(format!("the state file is of a campaign with seed {}, not {}", state.seed, settings.seed));
    }
    state.seed = settings.seed;
    for lane in state.lanes.values_mut() {
        lane.cannot = None;
    }
    for plan in plans {
        state.lanes.entry(plan.name.to_owned()).or_default();
    }
    let left_behind = plans
        .iter()
        .enumerate()
        .flat_map(|(i, plan)| state.lanes[plan.name].begun.iter().map(move |index| (i, *index)))
        .collect();
    let shared = Shared {
        plans,
        settings,
        started: Instant::now(),
        before: state.seconds,
        state: Mutex::new(state),
        handed_out: Mutex::new(0),
        left_behind: Mutex::new(left_behind),
    };
    let quiet = Quiet::new();
    let running = Mutex::new(settings.jobs.max(1));
    let failed = std::thread::scope(|s| -> Result<(), String> {
        for _ in 0..settings.jobs.max(1) {
            let work = || {
                shared.work(stop);
                *lock(&running) -= 1;
            };
            if let Err(e) = std::thread::Builder::new().stack_size(STACK).spawn_scoped(s, work) {
                *lock(&running) -= 1;
                eprintln!("no memory for a worker: {e}");
            }
        }
        let mut saved = Instant::now();
        let mut told = Instant::now();
        while *lock(&running) > 0 {
            std::thread::sleep(Duration::from_millis(20));
            if told.elapsed() >= TELL_EVERY {
                told = Instant::now();
                tell(&shared.now());
            }
            if saved.elapsed() >= SAVE_EVERY {
                saved = Instant::now();
                shared.save()?;
            }
        }
        Ok(())
    });
    drop(quiet);
    failed?;
    shared.save()?;
    Ok(shared.now())
}

/// Does one unit and nothing else.
///
/// # Errors
/// Why the lane cannot run here.
pub fn repeat(plan: &LanePlan, seed: u64, index: u64) -> Result<Tally, String> {
    let unit = || {
        let mut lane = (plan.make)()?;
        Ok(guarded(&mut *lane, seed, index))
    };
    std::thread::scope(|s| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(s, unit).map_err(|e| e.to_string())?;
        thread.join().map_err(|_| "the lane cannot even be made: it panics".to_owned())?
    })
}

/// A unit; a panic in it is a disagreement.
fn guarded(lane: &mut dyn Lane, seed: u64, index: u64) -> Tally {
    let unit = std::panic::AssertUnwindSafe(|| {
        let mut tally = Tally::default();
        lane.unit(seed, index, &mut tally);
        tally.count("units", 1);
        tally
    });
    std::panic::catch_unwind(unit).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("something that is no text");
        let mut tally = Tally::default();
        tally.disagree(seed, index, format!("a panic: {said}"));
        tally
    })
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared<'_> {
    fn now(&self) -> CampaignState {
        let mut state = lock(&self.state).clone();
        state.seconds = self.before + self.started.elapsed().as_secs_f64();
        state
    }

    fn save(&self) -> Result<(), String> {
        match &self.settings.state {
            Some(path) => self.now().write(path).map_err(|e| format!("{}: {e}", path.display())),
            None => Ok(()),
        }
    }

    fn over(&self, stop: &AtomicBool) -> bool {
        stop.load(Ordering::Relaxed)
            || self.before + self.started.elapsed().as_secs_f64() >= self.settings.time.as_secs_f64()
    }

    fn work(&self, stop: &AtomicBool) {
        let mut lanes: Vec<Option<Box<dyn Lane>>> = self.plans.iter().map(|_| None).collect();
        while !self.over(stop) {
            let Some((which, index)) = self.take() else { return };
            let plan = &self.plans[which];
            if lanes[which].is_none() {
                match (plan.make)() {
                    Ok(lane) => lanes[which] = Some(lane),
                    Err(why) => {
                        let mut state = lock(&self.state);
                        let lane = state.lanes.entry(plan.name.to_owned()).or_default();
                        lane.cannot = Some(why);
                        continue;
                    }
                }
            }
            let Some(lane) = &mut lanes[which] else { continue };
            let began = Instant::now();
            let tally = guarded(&mut **lane, self.settings.seed, index);
            if !tally.disagreements.is_empty() {
                // A lane that panicked may be in any state.
                lanes[which] = None;
            }
            let mut state = lock(&self.state);
            let lane = state.lanes.entry(plan.name.to_owned()).or_default();
            lane.begun.remove(&index);
            lane.seconds += began.elapsed().as_secs_f64();
            lane.tally.add(tally);
            let found = lane.tally.disagreements.len();
            if found > KEPT {
                lane.tally.disagreements.truncate(KEPT);
                lane.tally.count("disagreements not kept", (found - KEPT) as u64);
            }
        }
    }

    /// The next unit: lane and number. `None` when there is nothing to do.
    fn take(&self) -> Option<(usize, u64)> {
        let mut left_behind = lock(&self.left_behind);
        let mut state = lock(&self.state);
        while let Some((which, index)) = left_behind.pop() {
            if state.lanes[self.plans[which].name].cannot.is_none() {
                return Some((which, index));
            }
        }
        let mut handed_out = lock(&self.handed_out);
        let by_need = handed_out.is_multiple_of(2);
        let rank = |plan: &LanePlan| {
            let lane = &state.lanes[plan.name];
            let done = lane.tally.counts.get(plan.counter).copied().unwrap_or(0) as f64 / plan.per_hour.max(1) as f64;
            if by_need { done } else { lane.seconds }
        };
        let open = |plan: &LanePlan| {
            let lane = &state.lanes[plan.name];
            lane.cannot.is_none() && self.settings.slices.is_none_or(|n| lane.next < n * plan.slice)
        };
        let ranked = self.plans.iter().enumerate().filter(|(_, p)| open(p));
        let which = ranked.min_by(|(_, a), (_, b)| rank(a).total_cmp(&rank(b))).map(|(i, _)| i)?;
        *handed_out += 1;
        let lane = state.lanes.get_mut(self.plans[which].name)?;
        let index = lane.next;
        lane.next += 1;
        lane.begun.insert(index);
        Some((which, index))
    }
}

/// Keeps the runtime from printing panics while lanes run: they are reported as disagreements.
struct Quiet;

impl Quiet {
    fn new() -> Quiet {
        if std::env::var_os("RUST_BACKTRACE").is_none() {
            std::panic::set_hook(Box::new(|info| eprintln!("{}", info.to_string().replace('\n', " "))));
        }
        Quiet
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::panic::take_hook();
        }
    }
}
