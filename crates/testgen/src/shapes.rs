//! Objects with the shapes of real projects: what keeps loaders, limits or the search busy, and no benchmark has.
//!
//! One idea: a shape is generated twice from one piece of code: as its project would ship it, and *plainly*, with maps,
//! symbols and lengths that libbpf loads as they stand. The plain form tells what the kernel says to the code, and with
//! which maps the other form is to be loaded.
//!
//! The shapes are those of 564 objects of 42 projects on which the optimizer ran over its limit, was not judged by the
//! kernel or improved nothing. Code is random (`body`) and follows from the seed alone. What becomes of each program when
//! it is loaded is known ([`Fate`]), because it was written that way.

mod body;

use body::{Body, Hook, SETTINGS, SETTINGS_LENGTH, SUBPROGRAM, TABLE, VALUE_BYTES};

use crate::assembly::{self, AssemblyError, Function, Map, MapForm, Role, Signature, Surroundings, Type};
use crate::random::Rng;

/// What is special about an object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Shape {
    /// Maps as numbers in a section `maps`, for loaders before libbpf 1.0, iproute2 and gobpf, half of them without BTF:
    /// bcc's and Calico's older objects, loxilb, Suricata, most of what was written before 2020. The seed says how long a
    /// definition is and whether each map has a section of its own (0 to 3 modulo 4). Size: programs.
    LegacyMaps,
    /// Maps that the kernel does not make as they are defined, because the loader says how long they are, what their inner
    /// maps look like, how large their values are, or sets a flag: Cilium, Tetragon, Inspektor Gadget, OpenTelemetry's
    /// profiler. A program's name says which ([`COMPLETED`]). Size: programs.
    LoaderMaps,
    /// Programs whose symbols are local, as `static` functions have; cilium/ebpf loads them, libbpf does not: netobserv,
    /// tracee. Size: programs.
    StaticPrograms,
    /// Maps that take the kernel seconds to make, because it fills them beforehand: netobserv's flows, Katran's LRUs,
    /// Cilium's connection tables. Size: millions of elements of each.
    HugeMaps,
    /// Many programs for several hooks that share maps and a static subprogram: KubeArmor, Tetragon, drivers of hid-bpf,
    /// security agents with a probe for every system call. Size: programs.
    ManyPrograms,
    /// Programs with the same code under other names, as macros and templates make them for ingress and egress, for entry
    /// and exit, for each system call: Calico, xdp-tools, ebpf_exporter. Size: different codes, of each of which there are
    /// three programs.
    Twins,
    /// Programs that the kernel refuses after a million instructions, beside others that it loads: other kernels prune
    /// more, or the loader would set a bound in `.rodata`: Cilium with all options, Calico's debug builds, klockstat.
    /// Size: such programs.
    TooMuchToVerify,
    /// The same, and their code is shorter than that of all others, because it is little more than a loop: profilers that
    /// walk stacks or environments byte by byte. Size: such programs.
    EndlessLoops,
    /// One program of very many slots with loops: Cilium's `bpf_host`, `bpf_lxc`, OpenTelemetry's unwinders, obi.
    /// Size: about how many slots.
    LargeLoops,
    /// Tail calls through an array of programs that is filled in the object, one of which the kernel refuses: Cilium's and
    /// Calico's policies, Tetragon's filters. What loads one program of it loads all. Size: programs that it holds.
    ProgramArrays,
    /// Kernel functions that this kernel does not have: always called by some programs, by others only where they exist
    /// (`bpf_ksym_exists`), by the rest not at all: sched_ext's schedulers, Tetragon, xdp-tools. Size: programs.
    MissingKfuncs,
    /// Tracepoints whose records are copied to an event field by field, neighbours too, at offsets that are no multiple of
    /// 8: bcc's and libbpf's tools, tracee. Size: programs.
    TracepointContexts,
}

impl Shape {
    /// All of them.
    pub const ALL: [Shape; 12] = [
        Shape::LegacyMaps,
        Shape::LoaderMaps,
        Shape::StaticPrograms,
        Shape::HugeMaps,
        Shape::ManyPrograms,
        Shape::Twins,
        Shape::TooMuchToVerify,
        Shape::EndlessLoops,
        Shape::LargeLoops,
        Shape::ProgramArrays,
        Shape::MissingKfuncs,
        Shape::TracepointContexts,
    ];

    /// A size that shows what is special in little time.
    pub fn small(self) -> usize {
        match self {
            Shape::LegacyMaps | Shape::LoaderMaps | Shape::StaticPrograms | Shape::TracepointContexts => 4,
            Shape::HugeMaps => 10,
            Shape::ManyPrograms => 30,
            Shape::Twins => 3,
            Shape::TooMuchToVerify => 1,
            Shape::EndlessLoops => 4,
            Shape::LargeLoops => 5_000,
            Shape::ProgramArrays | Shape::MissingKfuncs => 6,
        }
    }

    /// As large as real ones are.
    pub fn large(self) -> usize {
        match self {
            Shape::LegacyMaps | Shape::LoaderMaps | Shape::StaticPrograms | Shape::TracepointContexts => 24,
            Shape::HugeMaps => 50,
            Shape::ManyPrograms => 100,
            Shape::Twins => 30,
            Shape::TooMuchToVerify | Shape::EndlessLoops => 8,
            Shape::LargeLoops => 60_000,
            Shape::ProgramArrays | Shape::MissingKfuncs => 30,
        }
    }
}

/// What loaders of [`Shape::LoaderMaps`] complete, as the programs are called that need it: a map's length, its inner map,
/// `BPF_F_NO_PREALLOC`, the size of its values.
pub const COMPLETED: [&str; 4] = ["length", "inner", "flag", "value"];

/// The kernel function that no kernel has.
pub const MISSING: &str = "bpf_of_a_later_kernel";
/// Another one, which a program may do without.
const MISSING_WEAK: &str = "bpf_of_a_much_later_kernel";

/// What the kernel says to a program, loaded as its project loads it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It is accepted.
    Loads,
    /// It is refused: too much to verify, or wrong.
    Refused,
    /// It calls [`MISSING`].
    Lacks,
}

/// A program of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Expected {
    /// Its name.
    pub name: String,
    /// Its section.
    pub section: String,
    /// What becomes of it.
    pub fate: Fate,
}

/// An object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Generated {
    /// As a project ships it.
    pub bytes: Vec<u8>,
    /// The same code, with the same maps in the same order, so that libbpf loads it quickly.
    pub plain: Vec<u8>,
    /// Its programs, in the object's order.
    pub programs: Vec<Expected>,
}

/// An object of a shape, which follows from seed and size.
///
/// # Errors
/// [`AssemblyError`]: an error of this module.
pub fn generate(shape: Shape, seed: u64, size: usize) -> Result<Generated, AssemblyError> {
    let mut r = Rng::of(seed, shape as u64);
    let mut draft = match shape {
        Shape::LegacyMaps => legacy_maps(&mut r, seed, size),
        Shape::LoaderMaps => loader_maps(&mut r, size),
        Shape::StaticPrograms => static_programs(&mut r, size),
        Shape::HugeMaps => huge_maps(&mut r, size),
        Shape::ManyPrograms => Ok(many_programs(&mut r, size)),
        Shape::Twins => Ok(twins(&mut r, size)),
        Shape::TooMuchToVerify => Ok(too_much_to_verify(&mut r, size, 400)),
        Shape::EndlessLoops => Ok(too_much_to_verify(&mut r, size, 0)),
        Shape::LargeLoops => Ok(large_loops(&mut r, size)),
        Shape::ProgramArrays => program_arrays(&mut r, size),
        Shape::MissingKfuncs => missing_kfuncs(&mut r, size),
        Shape::TracepointContexts => Ok(tracepoint_contexts(&mut r, size)),
    }?;
    for around in [&mut draft.around, &mut draft.plain] {
        around.section = draft.programs.first().map(|p| p.section.clone()).unwrap_or_default();
        around.maps.extend(standard_maps()?);
        around.lines = true;
    }
    let mut functions = draft.functions;
    functions.extend(assembly::functions(SUBPROGRAM, "")?);
    let plain = assembly::object(&draft.plain, &functions)?;
    for f in functions.iter_mut().filter(|f| draft.hidden && f.role == Role::Program) {
        f.role = Role::Static;
    }
    Ok(Generated { bytes: assembly::object(&draft.around, &functions)?, plain, programs: draft.programs })
}

/// An object to be: its special maps, its code without subprograms.
#[derive(Default)]
struct Draft {
    around: Surroundings,
    plain: Surroundings,
    functions: Vec<Function>,
    programs: Vec<Expected>,
    /// The symbols of programs are local, but for the plain form.
    hidden: bool,
}

impl Draft {
    fn add(&mut self, name: String, section: &str, fate: Fate, listing: String) {
        let signature = Signature {
            name: name.clone(),
            params: vec![Type::Context],
            returns: Type::Int { bytes: 4, signed: true },
        };
        self.functions.push(Function { signature, role: Role::Program, section: section.into(), listing });
        self.programs.push(Expected { name, section: section.into(), fate });
    }

    /// Adds a program that loads.
    fn good(&mut self, name: String, section: &str, listing: String) {
        self.add(name, section, Fate::Loads, listing);
    }

    /// Adds a map, as the project defines it and as libbpf takes it; see [`Map::parse`].
    fn map(&mut self, shipped: &str, plain: &str) -> Result<(), AssemblyError> {
        self.around.maps.push(Map::parse(shipped)?);
        self.plain.maps.push(Map::parse(plain)?);
        Ok(())
    }
}

fn standard_maps() -> Result<[Map; 2], AssemblyError> {
    let table = Map::parse(&format!("{TABLE} hash 4 {VALUE_BYTES} 4096"))?;
    Ok([table, Map::parse(&format!("{SETTINGS} array 4 {VALUE_BYTES} {SETTINGS_LENGTH}"))?])
}

/// What an ordinary program is: its hook, its section, about how many slots it has.
struct Kind {
    hook: Hook,
    section: &'static str,
    slots: usize,
}

impl Kind {
    fn any(r: &mut Rng) -> Kind {
        let hook = r.one_of(&Hook::ALL);
        Kind::of(r, hook)
    }

    fn of(r: &mut Rng, hook: Hook) -> Kind {
        Kind { hook, section: r.one_of(hook.sections()), slots: 50 + r.below(100) as usize }
    }

    /// The program without its end.
    fn body<'r>(&self, r: &'r mut Rng) -> Body<'r> {
        Body::new(r, self.hook).with_calls().fill(self.slots)
    }
}

fn legacy_maps(r: &mut Rng, seed: u64, size: usize) -> Result<Draft, AssemblyError> {
    let mut draft = Draft::default();
    let (bytes, apart) = [(20, false), (28, false), (36, false), (28, true)][seed as usize % 4];
    draft.around.map_form = MapForm::Legacy { bytes, apart };
    draft.around.untyped = seed.is_multiple_of(2);
    let without_room = format!("sources hash 4 {VALUE_BYTES} 65536 flags 1");
    draft.map(&without_room, &without_room)?;
    for n in 0..size {
        let kind = Kind::any(r);
        let mut body = kind.body(r);
        let over = body.lookup("sources", n as u64);
        body.write("r1 = 1; lock *(u64 *)(r0 + 0) += r1");
        body.end(&over);
        draft.good(format!("legacy_{n}"), kind.section, body.finish());
    }
    Ok(draft)
}

fn loader_maps(r: &mut Rng, size: usize) -> Result<Draft, AssemblyError> {
    let mut draft = Draft::default();
    draft.map(&format!("sized hash 4 {VALUE_BYTES} 0"), &format!("sized hash 4 {VALUE_BYTES} 1024"))?;
    draft.map("tenants hash_of_maps 4 4 16", &format!("tenants hash_of_maps 4 4 16 of {TABLE}"))?;
    draft.map(
        &format!("prefixes lpm_trie 8 {VALUE_BYTES} 1024"),
        &format!("prefixes lpm_trie 8 {VALUE_BYTES} 1024 flags 1"),
    )?;
    draft.map("stacks stack_trace 4 0 1024", "stacks stack_trace 4 1016 1024")?;
    for n in 0..size {
        let completed = COMPLETED[n % COMPLETED.len()];
        let kind = if completed == "value" { Kind::of(r, Hook::Kprobe) } else { Kind::any(r) };
        let mut body = kind.body(r);
        match completed {
            "length" => {
                let over = body.lookup("sized", n as u64);
                body.write("r1 = *(u64 *)(r0 + 8); r7 += r1");
                body.end(&over);
            }
            "inner" => {
                let over = body.lookup("tenants", n as u64);
                body.write(&format!(
                    "r1 = r0; r2 = r10; r2 += -4; call bpf_map_lookup_elem; if r0 == 0 goto {over};
                     r1 = *(u64 *)(r0 + 0); r1 += 1; *(u64 *)(r0 + 0) = r1"
                ));
                body.end(&over);
            }
            "flag" => {
                let over = body.label();
                body.write(&format!(
                    "r1 = 32; *(u32 *)(r10 - 16) = r1; r1 = {n}; *(u32 *)(r10 - 12) = r1; r2 = r10; r2 += -16;
                     r1 = prefixes ll; call bpf_map_lookup_elem; if r0 == 0 goto {over}; r1 = *(u64 *)(r0 + 8); r7 += r1"
                ));
                body.end(&over);
            }
            _ => body.write("r1 = r6; r2 = stacks ll; r3 = 256; call bpf_get_stackid; r7 += r0"),
        }
        draft.good(format!("{completed}_{n}"), kind.section, body.finish());
    }
    Ok(draft)
}

fn static_programs(r: &mut Rng, size: usize) -> Result<Draft, AssemblyError> {
    let mut draft = Draft { hidden: true, ..Draft::default() };
    for n in 0..size {
        let kind = Kind::any(r);
        let code = kind.body(r).finish();
        draft.good(format!("hidden_{n}"), kind.section, code);
    }
    Ok(draft)
}

fn huge_maps(r: &mut Rng, size: usize) -> Result<Draft, AssemblyError> {
    let mut draft = Draft::default();
    let elements = size * 1_000_000;
    let map_types = ["hash", "percpu_hash", "lru_hash", "lru_percpu_hash"];
    for (n, map_type) in map_types.into_iter().enumerate() {
        draft.map(
            &format!("huge_{n} {map_type} 4 {VALUE_BYTES} {elements}"),
            &format!("huge_{n} {map_type} 4 {VALUE_BYTES} 16"),
        )?;
    }
    for (n, map_type) in map_types.into_iter().enumerate() {
        let kind = Kind::any(r);
        let mut body = kind.body(r);
        let over = body.lookup(&format!("huge_{n}"), n as u64);
        body.write("r1 = *(u64 *)(r0 + 16); r1 += 1; *(u64 *)(r0 + 16) = r1");
        body.end(&over);
        draft.good(format!("uses_{map_type}"), kind.section, body.finish());
    }
    Ok(draft)
}

fn many_programs(r: &mut Rng, size: usize) -> Draft {
    let mut draft = Draft::default();
    for n in 0..size {
        let kind = Kind::any(r);
        let code = kind.body(r).finish();
        draft.good(format!("program_{n}"), kind.section, code);
    }
    draft
}

fn twins(r: &mut Rng, size: usize) -> Draft {
    let mut draft = Draft::default();
    for n in 0..size {
        let kind = Kind::any(r);
        let code = kind.body(r).finish();
        for (at, twin) in ["ingress", "egress", "again"].into_iter().enumerate() {
            let sections = kind.hook.sections();
            draft.good(format!("{twin}_{n}"), sections[at % sections.len()], code.clone());
        }
    }
    draft
}

/// Programs with so many slots before a loop that never ends for the verifier, beside others.
fn too_much_to_verify(r: &mut Rng, size: usize, slots: usize) -> Draft {
    let mut draft = Draft::default();
    for n in 0..size {
        let mut body = Body::new(r, Hook::Xdp).fill(slots);
        let (again, even) = (body.label(), body.label());
        body.write(&format!(
            "r8 = 0; {again}:; r1 = r8; r1 &= 1; if r1 == 0 goto {even}; r7 += r8; {even}:; r8 += 1;
             if r8 < 1000000 goto {again}"
        ));
        draft.add(format!("endless_{n}"), "xdp", Fate::Refused, body.finish());
    }
    for n in 0..3 {
        let kind = Kind::any(r);
        let code = kind.body(r).finish();
        draft.good(format!("companion_{n}"), kind.section, code);
    }
    draft
}

fn large_loops(r: &mut Rng, size: usize) -> Draft {
    let mut draft = Draft::default();
    let hook = r.one_of(&[Hook::Xdp, Hook::Tc]);
    let kind = Kind { slots: size, ..Kind::of(r, hook) };
    draft.good("large".into(), kind.section, kind.body(r).finish());
    draft
}

fn program_arrays(r: &mut Rng, size: usize) -> Result<Draft, AssemblyError> {
    let mut draft = Draft::default();
    let kind = Kind { section: "xdp", ..Kind::of(r, Hook::Xdp) };
    let mut map = format!("policies prog_array 4 4 {size}");
    for n in 0..size {
        map += &format!(" holds policy_{n}");
    }
    draft.map(&map, &format!("policies prog_array 4 4 {size}"))?;
    for n in 0..size {
        let mut body = kind.body(r);
        body.write(&format!("r1 = r6; r2 = policies ll; r3 = {}; call bpf_tail_call", (n + 1) % size));
        if n == size / 2 {
            // Nothing is known of where the value ends.
            let over = body.lookup(TABLE, 1);
            body.write("r1 = r7; r0 += r1; r1 = *(u64 *)(r0 + 0); r7 += r1");
            body.end(&over);
            draft.add(format!("policy_{n}"), kind.section, Fate::Refused, body.finish());
        } else {
            draft.good(format!("policy_{n}"), kind.section, body.finish());
        }
    }
    Ok(draft)
}

fn missing_kfuncs(r: &mut Rng, size: usize) -> Result<Draft, AssemblyError> {
    let mut draft = Draft::default();
    for around in [&mut draft.around, &mut draft.plain] {
        around.weak_kfuncs.push(Signature::parse(&format!("{MISSING_WEAK}() void"))?);
        around.kfuncs.push(Signature::parse(&format!("{MISSING}() void"))?);
    }
    for n in 0..size {
        let kind = Kind::any(r);
        let mut body = kind.body(r);
        match n % 3 {
            0 => {
                body.write(&format!("call {MISSING}"));
                draft.add(format!("needs_it_{n}"), kind.section, Fate::Lacks, body.finish());
            }
            1 => {
                let over = body.label();
                body.write(&format!("r1 = {MISSING_WEAK} ll; if r1 == 0 goto {over}; call {MISSING_WEAK}; r7 += 1"));
                body.end(&over);
                draft.good(format!("asks_for_it_{n}"), kind.section, body.finish());
            }
            _ => draft.good(format!("knows_nothing_of_it_{n}"), kind.section, body.finish()),
        }
    }
    Ok(draft)
}

fn tracepoint_contexts(r: &mut Rng, size: usize) -> Draft {
    let mut draft = Draft::default();
    for n in 0..size {
        let kind = Kind::of(r, Hook::Tracepoint);
        let mut body = Body::new(r, kind.hook).with_calls();
        for _ in 0..8 {
            body.record();
        }
        draft.good(format!("traced_{n}"), kind.section, body.fill(kind.slots).finish());
    }
    draft
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_objects_and_others_give_others() {
        for shape in Shape::ALL {
            let [a, b, c] = [1, 1, 2].map(|seed| generate(shape, seed, shape.small()).expect("it assembles"));
            assert!(a == b, "{shape:?}");
            assert!(a.bytes != c.bytes, "{shape:?}");
        }
    }

    #[test]
    fn a_large_program_has_about_as_many_slots_as_wanted() {
        for size in [5_000, 20_000, 60_000] {
            let draft = large_loops(&mut Rng::new(1), size);
            let listing = &draft.functions[0].listing;
            let slots = listing.lines().filter(|l| !l.ends_with(':')).map(|l| 1 + usize::from(l.ends_with(" ll")));
            let slots: usize = slots.sum();
            assert!(slots.abs_diff(size) < 60, "{slots} of {size}");
        }
    }
}
