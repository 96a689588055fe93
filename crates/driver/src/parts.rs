//! What became of single functions, as data that can be kept and carried to other machines.
//!
//! With [`Options::by_function`](crate::Options::by_function) each function is worked on by itself: passes, then a search of so many
//! rounds that knows nothing of other functions. What comes of it, its [`Part`], depends on the function, its surroundings and the
//! options, and on nothing else but time (`Question` holds all of that), so it has a name made of these ([`names`]). [`make`] makes
//! parts; a run that has them ([`Options::parts`](crate::Options::parts)) takes them in place of the work.
//!
//! Nothing of a part is trusted: it stands only where it is proven, as a whole function, to do what the original does
//! (`Start::of_part`). Where that cannot be shown, the work is done again, and the same comes of it. Neither the kernel nor
//! `check` has seen it; should they find fault with an object that is made of parts, it is made again without any
//! ([`crate::optimize`]), since a part does not tell its steps. So a run with parts writes the bytes of one without.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use bpf_isa::{Insn, decode_all};
use bpf_object::{FuncId, NewInsn, Object, WriteOptions};
use bpf_passes::Settings;
use bpf_program::{Function, Lowered, ProgKind, Terminator, build, lower};
use sha2::{Digest, Sha256};

use crate::candidate::{Candidate, each_candidate, most_slots};
use crate::error::DriverError;
use crate::global::Start;
use crate::module::Module;
use crate::options::Options;
use crate::part::{Named, Part};
use crate::plan::Plan;
use crate::prepare::{check_names, settings, wanted, watched};
use crate::private_stack::is_in_struct_ops;
use crate::report::{Ended, Observer, PartsReport, SearchReport};
use crate::sensitive::is_sensitive;
use crate::shared::{Question, Topic};
use crate::synthesis::{self, Search};
use crate::twins::Twins;
use crate::written::in_old_slots;

/// The functions of an object and the names of their parts, in its order.
///
/// # Errors
/// [`DriverError`] if it cannot be read, or lacks what the options name.
pub fn names(input: &[u8], options: &Options) -> Result<Vec<Named>, DriverError> {
    let object = Object::parse(input.to_vec())?;
    check_names(&object, options)?;
    let module = Module::new(object);
    let settings = settings(&module, options, None);
    let wanted = wanted(&module, options);
    let named = |(id, f): (usize, &bpf_object::Function)| Named {
        function: f.name.clone(),
        section: f.section.clone(),
        slots: f.slots,
        part: wanted[id].then(|| name(&module, id, options, &settings)).flatten(),
    };
    Ok(module.object.functions().iter().enumerate().map(named).collect())
}

/// Makes the parts of the wanted functions of an object that are not there yet; no object is written, and neither the kernel nor
/// `check` is asked.
///
/// # Errors
/// [`DriverError`] if it cannot be read, or lacks what the options name.
pub fn make(input: &[u8], options: &Options, observer: &dyn Observer) -> Result<PartsReport, DriverError> {
    let started = Instant::now();
    let object = Object::parse(input.to_vec())?;
    check_names(&object, options)?;
    let module = Module::new(object);
    let plan = Plan::new(started, options.time_limit, Duration::ZERO, started.elapsed(), false);
    let mut settings = settings(&module, options, plan.passes());
    let stop = Arc::new(AtomicBool::new(false));
    settings.stop = Some(stop.clone());
    let mut wanted = wanted(&module, options);
    let parts = options.parts.as_deref();
    let mut report = PartsReport::default();
    for (id, wanted) in wanted.iter_mut().enumerate().filter(|(_, wanted)| **wanted) {
        let name = name(&module, id, options, &settings);
        *wanted = name.as_ref().is_some_and(|name| parts.is_none_or(|parts| parts.get(name).is_none()));
        report.taken += usize::from(name.is_some() && !*wanted);
    }
    let mut candidates: Vec<Candidate> = (0..wanted.len()).map(|id| Candidate::new(&module, id)).collect();
    let work = Work { module: &module, settings: &settings, options, observer, started, stop: &stop };
    report.made = work.on_each(&mut candidates, &wanted, &mut SearchReport::default(), &mut Vec::new());
    Ok(report)
}

/// The name of what becomes of function `id`: all that it depends on, save what a cache holds, and nothing else. `None` if nothing can
/// be done with it.
fn name(module: &Module, id: usize, options: &Options, settings: &Settings) -> Option<String> {
    let f = module.graphs[id].as_ref().ok()?;
    if is_sensitive(module, FuncId(id)) {
        return None;
    }
    let question = module.with_env(|env| Question::new(Topic::Local, f, f, env, settings));
    let Options { seed, rounds, patience, search, shipped_rules, cache, min_kernel, .. } = options;
    let asked = (seed, rounds, patience, search, shipped_rules, cache.is_some(), min_kernel.to_string());
    let text = format!("{} {question:?} {asked:?} {}", env!("CARGO_PKG_VERSION"), is_in_struct_ops(module, FuncId(id)));
    Some(hex::encode(&Sha256::digest(text.as_bytes())[..16]))
}

/// What working on functions by themselves needs.
pub(crate) struct Work<'a> {
    pub(crate) module: &'a Module,
    pub(crate) settings: &'a Settings,
    pub(crate) options: &'a Options,
    pub(crate) observer: &'a dyn Observer,
    pub(crate) started: Instant,
    pub(crate) stop: &'a AtomicBool,
}

impl Work<'_> {
    /// Works on each wanted function by itself, and keeps its part if there is a place for it; how many were kept.
    pub(crate) fn on_each(
        &self,
        candidates: &mut Vec<Candidate>,
        wanted: &[bool],
        report: &mut SearchReport,
        notes: &mut Vec<String>,
    ) -> usize {
        let Work { module, settings, options, observer, started, stop } = *self;
        let twins = Twins::of(candidates, wanted, settings);
        let count = candidates.len();
        let is_mine = |c: &Candidate| wanted[c.id] && twins.leads(c.id);
        watched(observer, stop, || {
            each_candidate(candidates, module, settings, options.jobs, is_mine, |c| {
                observer.function(c.id, count, &c.report.name, c.report.slots_before);
                c.timed_out = observer.stop();
                if !c.timed_out {
                    c.run_passes(module, settings);
                    c.keep_present(module, settings);
                }
                c.note_size(started, 0);
            });
        });
        let (mut made, mut saved) = (0, 0);
        let leaders: Vec<usize> = candidates.iter().filter(|c| is_mine(c)).map(|c| c.id).collect();
        for id in leaders {
            let mut ended = Ended::Rounds;
            if options.looks_at_windows() {
                let mut only = vec![false; count];
                only[id] = true;
                let (found, _) = watched(observer, stop, || {
                    let search = Search::new(module, settings, options, observer, started);
                    synthesis::run(candidates, &only, search, notes)
                });
                each_candidate(candidates, module, settings, 1, |c| c.id == id, |c| c.keep_present(module, settings));
                ended = found.ended;
                report.add(&found);
            }
            let c = &candidates[id];
            saved += c.report.slots_before.saturating_sub(c.report.slots_after);
            observer.saved(saved);
            // What time has cut short is not what becomes of it.
            let is_whole = !c.timed_out && !observer.stop() && !matches!(ended, Ended::Time | Ended::Interrupted);
            if let (true, Some(parts)) = (is_whole, &options.parts)
                && let Some(name) = name(module, id, options, settings)
            {
                let by = c.report.rewrites.iter().map(|(by, _)| by.clone()).collect();
                parts.put(&name, &Part::new(c.report.untouched.clone(), by, c.body.as_deref()));
                made += 1;
            }
        }
        for (twin, of) in twins.pairs() {
            Candidate::share(candidates, module, settings, of, twin);
        }
        made
    }

    /// Takes the parts that are there and proven; for each function whether it was.
    pub(crate) fn take(&self, candidates: &mut Vec<Candidate>, wanted: &[bool]) -> Vec<bool> {
        let Work { module, settings, options, .. } = *self;
        let mut taken = vec![false; candidates.len()];
        let Some(parts) = &options.parts else { return taken };
        let mut object = module.object.clone();
        let mut bodies: Vec<Option<(Part, Vec<NewInsn>)>> = vec![None; candidates.len()];
        for c in candidates.iter_mut().filter(|c| wanted[c.id]) {
            let Some(part) = name(module, c.id, options, settings).and_then(|name| parts.get(&name)) else { continue };
            if part.body.is_none() {
                c.report.untouched.clone_from(&part.untouched);
                taken[c.id] = true;
            } else if let Some(body) = part.insns().filter(|body| allowed(module, c, settings, body))
                && object.set_body(FuncId(c.id), body.clone()).is_ok()
            {
                bodies[c.id] = Some((part, body));
            }
        }
        let written = object.write(&WriteOptions { keep_debug: options.keep_debug });
        let Some(read) = written.ok().and_then(|w| Object::parse(w.bytes).ok()) else { return taken };
        let (read, bodies) = (&read, &bodies);
        each_candidate(
            candidates,
            module,
            settings,
            options.jobs,
            |c| bodies[c.id].is_some(),
            |c| {
                let Some((part, body)) = &bodies[c.id] else { return };
                let Some(f) = graph(module, read, c.id, body) else { return };
                let end = Instant::now().checked_add(options.whole);
                let deadline = [end, settings.deadline].into_iter().flatten().min();
                c.take_part(module, settings, deadline, f, body, &part.by);
            },
        );
        for c in candidates.iter().filter(|c| bodies[c.id].is_some()) {
            taken[c.id] = c.body.is_some();
        }
        taken
    }
}

/// Whether a body is none that [`Candidate::lower`] would not make.
fn allowed(module: &Module, c: &Candidate, settings: &Settings, body: &[NewInsn]) -> bool {
    let bytes: Vec<u8> = body.iter().flat_map(|insn| &insn.bytes).copied().collect();
    let Ok(insns) = decode_all(&bytes) else { return false };
    let level = |insns: &[(usize, Insn)]| insns.iter().map(|(_, insn)| insn.cpu()).max().unwrap_or(1);
    let original = module.graphs[c.id].as_ref().ok().and_then(|f| lower(f).ok());
    let most = original.map_or(settings.cpu, |Lowered { listing, .. }| level(&listing).max(settings.cpu));
    bytes.len() / 8 <= most_slots(c.report.slots_before, settings.goal) && level(&insns) <= most
}

/// The graph of a body that stands in a written object, in terms of the original.
fn graph(module: &Module, read: &Object, id: usize, body: &[NewInsn]) -> Option<Function> {
    let original = module.graphs[id].as_ref().ok()?;
    let mut f = build(read, FuncId(id)).ok()?;
    in_old_slots(&mut f, body).ok()?;
    let mut origins = HashMap::new();
    let mut slot = 0;
    for insn in body {
        origins.insert(slot, insn.origin);
        slot += insn.bytes.len() / 8;
    }
    let old = |origin: Option<usize>| origin.and_then(|slot| origins.get(&slot).copied().flatten());
    for block in &mut f.blocks {
        block.ops.iter_mut().for_each(|op| op.origin = old(op.origin));
        if let Terminator::Branch { origin, .. } | Terminator::Exit { origin } = &mut block.term {
            *origin = old(*origin);
        }
    }
    f.name.clone_from(&original.name);
    if f.kind == ProgKind::Subprogram || original.kind == ProgKind::Subprogram {
        // What its callers pass was found from them.
        f.kind = original.kind;
    }
    f.arguments.clone_from(&original.arguments);
    Some(f)
}

impl Candidate {
    /// Takes what is said to have become of it, if that is proven.
    fn take_part(
        &mut self,
        module: &Module,
        settings: &Settings,
        deadline: Option<Instant>,
        f: Function,
        body: &[NewInsn],
        by: &[String],
    ) {
        let started = Instant::now();
        let Some(before) = self.derivation.as_ref() else { return };
        let Some(start) = module.with_env(|env| Start::of_part(before, &f, by, env, settings, deadline)) else {
            return;
        };
        let before = self.clone();
        self.go_on_as(start, f, body.to_vec());
        self.keep_present(module, settings);
        if self.body.as_deref() != Some(body) {
            *self = before;
        }
        self.report.seconds += started.elapsed().as_secs_f64();
    }
}
