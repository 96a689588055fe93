//! Lane `helpers`: random assembly that calls helpers from the whole table, original against optimized in the kernel.
//!
//! How to call a helper is taken from the recipes of `bpf-modeltest`, which reach nearly every helper that a program
//! which can be run may call: in a network namespace with devices, routes and sockets, with maps of every kind. A
//! program of this lane ([`writer`]) makes one to four such calls, with other numbers, lengths and bytes, between
//! accesses of frame, context, packet and maps that give the optimizer something to do and the prover something to get
//! wrong. What differs is shrunk, item by item, and kept ([`crate::finds`]).

pub mod program;
pub mod writer;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use bpf_driver::difftest::{Furnish, Random as Traffic, Setup, packet};
use bpf_kernel::LoadedObject;
use bpf_modeltest::fields::{self, Field};
use bpf_modeltest::kinds::{self, KINDS, Kind};
use bpf_modeltest::lab;
use bpf_modeltest::observe::Bench;
use bpf_modeltest::recipe::{self, Call};
use bpf_platform::helpers::Helper;
use bpf_testgen::random::Rng;

use crate::finds::{Finder, NotCompared, Optimizer, REAL, SEARCHED, Subject, in_own_thread};
use crate::{Lane, Tally};
use program::Program;
use writer::Material;

/// Programs of a unit: making the namespace takes longer than optimizing a program.
const PROGRAMS: u64 = 8;
/// The most calls of a program.
const CALLS: u64 = 4;
/// How often another call is taken for one that does not suit.
const TRIES: u64 = 40;
/// The set of helpers in the tally.
const CALLED: &str = "helpers called in compared programs";

/// `bpf_sys_bpf` makes maps that nobody closes: file descriptors of this process.
const LEFT_OUT: [i32; 1] = [166];

/// The lane.
pub struct HelpersLane {
    finder: Finder,
    calls: Vec<Call>,
    contexts: BTreeMap<&'static str, Context>,
    /// Whether programs of a kind may make a call as it is written: asked once.
    takes: HashMap<(usize, &'static str), bool>,
}

/// Context fields of a kind, as this kernel lets programs access them.
#[derive(Clone)]
struct Context {
    loads: Vec<Field>,
    stores: Vec<Field>,
}

struct Assembled {
    program: Program,
    search: bool,
    traffic: u64,
}

impl Subject for Assembled {
    fn parts(&self) -> usize {
        self.program.parts()
    }

    fn object(&self, kept: &[usize]) -> Result<Vec<u8>, NotCompared> {
        let listing = self.program.listing(kept);
        self.program.object(&listing).map_err(|e| ("programs that cannot be assembled", format!("{e}\n{listing}")))
    }

    fn source(&self, kept: &[usize]) -> (&'static str, String) {
        ("find.s", self.program.listing(kept))
    }

    fn made_by(&self) -> String {
        format!("find.s, section {}, assembled by bpf-testgen", self.program.section)
    }

    fn search(&self) -> bool {
        self.search
    }

    fn traffic(&self) -> u64 {
        self.traffic
    }

    /// In every other round the packet that recipes are written for, among others.
    fn packets(&self, n: u64) -> Option<Vec<Vec<u8>>> {
        let whole_only = self.program.kind == "netfilter";
        if n % 2 == 1 && !whole_only {
            return None;
        }
        let mut r = Traffic::of(self.traffic ^ 0x9ac4e7, n);
        let strip = |p: Vec<u8>| if whole_only { p[14..].to_vec() } else { p };
        Some((0..4).map(|i| if i % 2 == 0 { strip(changed(&mut r)) } else { random(&mut r, whole_only) }).collect())
    }
}

/// The packet of the recipes with a few bytes behind its headers changed.
fn changed(r: &mut Traffic) -> Vec<u8> {
    let mut p = kinds::ethernet_tcp();
    for _ in 0..r.below(3) {
        let at = 54 + r.below(p.len() as u64 - 54) as usize;
        p[at] = r.next() as u8;
    }
    p
}

/// A random packet; for netfilter, one that begins with an IPv4 header.
fn random(r: &mut Traffic, ip: bool) -> Vec<u8> {
    if !ip {
        return packet(r, &[]);
    }
    let mut p = kinds::ethernet_tcp()[14..].to_vec();
    let tail = r.bytes(46);
    p[40..].copy_from_slice(&tail);
    p
}

impl HelpersLane {
    /// The lane.
    ///
    /// # Errors
    /// Why it cannot run here.
    pub fn new(keep: &Path) -> Result<HelpersLane, String> {
        HelpersLane::of(REAL, keep)
    }

    /// The lane with another optimizer.
    ///
    /// # Errors
    /// As [`HelpersLane::new`].
    pub fn of(optimizer: Optimizer, keep: &Path) -> Result<HelpersLane, String> {
        bpf_kernel::permitted().require().map_err(|e| e.to_string())?;
        let mut calls = recipe::all().map_err(|e| e.to_string())?.calls;
        calls.retain(|c| !LEFT_OUT.contains(&c.helper));
        let contexts = runnable().map(|(kind, _)| (kind.name, Context::of(kind))).collect();
        let finder = Finder { rounds: 4, inputs: 16, ..Finder::new("helpers", optimizer, keep) };
        Ok(HelpersLane { finder, calls, contexts, takes: HashMap::new() })
    }

    /// The programs of a unit, in this thread's network namespace.
    fn programs(&mut self, seed: u64, index: u64, tally: &mut Tally) -> Result<(), String> {
        let loads = self.contexts.iter().map(|(kind, c)| (*kind, c.loads.clone())).collect();
        let bench = Arc::new(Bench::with_fields(loads)?);
        let setup = Setup { furnish: furnish(Arc::clone(&bench)), ..Setup::default() };
        for n in 0..PROGRAMS {
            let mut r = Rng::of(seed ^ 0x6e19e5, index * PROGRAMS + n);
            let program = match self.generate(&bench, &mut r) {
                Ok(program) => program,
                Err(_) => {
                    tally.count("programs not generated", 1);
                    continue;
                }
            };
            let called = program.helpers();
            let subject = Assembled { program, search: r.chance(SEARCHED), traffic: r.next() };
            if self.finder.program(&subject, &setup, (seed, index), tally) {
                called.into_iter().for_each(|id| tally.note(CALLED, &name(id)));
            }
        }
        Ok(())
    }

    /// A program.
    fn generate(&mut self, bench: &Bench, r: &mut Rng) -> Result<Program, String> {
        let kinds: Vec<(&'static Kind, &'static str)> = runnable().collect();
        let (kind, section) = r.one_of(&kinds);
        let calls: Vec<Call> = (0..1 + r.below(CALLS)).filter_map(|_| self.call(bench, kind, r)).collect();
        let split = if r.chance(2) { r.below(calls.len() as u64 + 1) as usize } else { calls.len() };
        let probe = self.calls.iter().position(|c| c.helper == writer::PROBE);
        let probes = probe.is_some_and(|which| self.takes(bench, which, kind));
        let Context { loads, stores } = &self.contexts[kind.name];
        let material = Material { kind, section, fields: loads, stores, probes, lab: &bench.lab };
        writer::program(r, material, &calls, split)
    }

    /// A call that programs of this kind may make, perhaps changed. Helpers are equally likely, however many calls of
    /// each the recipes have.
    fn call(&mut self, bench: &Bench, kind: &'static Kind, r: &mut Rng) -> Option<Call> {
        for _ in 0..TRIES {
            let helper = self.calls[r.below(self.calls.len() as u64) as usize].helper;
            let of_helper: Vec<usize> = (0..self.calls.len()).filter(|i| self.calls[*i].helper == helper).collect();
            let which = r.one_of(&of_helper);
            if self.takes(bench, which, kind) {
                let call = &self.calls[which];
                let varied = writer::vary(call, r);
                return Some(if bench.takes(&varied, kind) { varied } else { call.clone() });
            }
        }
        None
    }

    fn takes(&mut self, bench: &Bench, which: usize, kind: &'static Kind) -> bool {
        let call = &self.calls[which];
        *self.takes.entry((which, kind.name)).or_insert_with(|| {
            (call.kinds.is_empty() || call.kinds.iter().any(|k| k == kind.name))
                && writer::writable(call, &bench.lab)
                && bench.takes(call, kind)
        })
    }

    /// The listing of program `n` of a unit, as generated.
    ///
    /// # Errors
    /// Why there is none.
    pub fn listing(&mut self, seed: u64, index: u64, n: u64) -> Result<String, String> {
        let mut listing = Err(String::new());
        let mut unused = Tally::default();
        in_own_thread(&mut unused, |_| {
            let loads = self.contexts.iter().map(|(kind, c)| (*kind, c.loads.clone())).collect();
            let bench = Bench::with_fields(loads)?;
            let mut r = Rng::of(seed ^ 0x6e19e5, index * PROGRAMS + n);
            listing = self.generate(&bench, &mut r).map(|p| p.listing(&(0..p.parts()).collect::<Vec<_>>()));
            Ok(())
        });
        listing
    }
}

/// The kinds of program that this lane makes, with their sections.
fn runnable() -> impl Iterator<Item = (&'static Kind, &'static str)> {
    KINDS.iter().filter_map(|kind| Some((kind, program::section(kind)?)))
}

impl Context {
    fn of(kind: &Kind) -> Context {
        let loads = fields::whole(kind);
        let numbers = loads.iter().filter(|f| !f.pointer);
        let stores = numbers.filter(|f| fields::stores(kind, f.offset, f.width)).copied().collect();
        Context { loads, stores }
    }
}

/// What maps hold that only their owner can make: sockets, devices, inner maps, events.
fn furnish(bench: Arc<Bench>) -> Furnish {
    Furnish::with(move |object: &LoadedObject| {
        for map in object.maps().unwrap_or_default() {
            if lab::shape(map.name()).is_some() {
                // What the kernel does not take is missing on both sides.
                let _ = lab::furnish(map.name(), &map, &bench.lab);
            }
        }
    })
}

fn name(helper: i32) -> String {
    Helper::get(helper).map_or_else(|| helper.to_string(), |h| h.name.to_owned())
}

impl Lane for HelpersLane {
    fn name(&self) -> &'static str {
        "helpers"
    }

    fn unit(&mut self, seed: u64, index: u64, tally: &mut Tally) {
        in_own_thread(tally, |tally| self.programs(seed, index, tally));
    }
}
