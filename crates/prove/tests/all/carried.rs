//! Values that registers carry over block borders, where the other side computes them anew: the right
//! ones are proven, the wrong ones that look like them are not.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bpf_facts::{Env, MapInfo};
use bpf_program::{Function, ProgKind};
use bpf_prove::{Limits, Options, Verdict};
use bpf_testgen::listing;

use crate::common::{Rng, mix, rounds};
use crate::paths::functions;

/// Replaces names of places by distances: `goto name`, and `name:` on a line of its own.
fn placed(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    let mut places = HashMap::new();
    let mut at = 0i64;
    for line in &lines {
        match line.strip_suffix(':') {
            Some(name) => drop(places.insert(name, at)),
            None => at += 1 + i64::from(line.ends_with(" ll")),
        }
    }
    let mut at = 0;
    let mut out = String::new();
    for line in lines.iter().filter(|l| !l.ends_with(':')) {
        at += 1 + i64::from(line.ends_with(" ll"));
        match line.split_once("goto ") {
            Some((cond, name)) => out += &format!("{cond}goto {:+}\n", places[name] - at),
            None => out += &format!("{line}\n"),
        }
    }
    out
}

/// Builds a function with places.
fn function(text: &str) -> Function {
    listing::function(ProgKind::Xdp, &placed(text))
}

fn verdict(old: &Function, new: &Function) -> Verdict {
    within(Limits { conflicts: 300, work: 500_000, ..Limits::default() }, old, new)
}

fn within(limits: Limits, old: &Function, new: &Function) -> Verdict {
    let map = |name: &str| MapInfo {
        name: name.into(),
        map_type: Some(1),
        key_size: Some(4),
        value_size: Some(32),
        max_entries: Some(8),
        ..MapInfo::default()
    };
    let maps = [map("map0"), map("map1")];
    let env = Env { maps: &maps, callee_args: &|_| None, ..Env::empty() };
    bpf_prove::functions(old, new, &env, &Options { limits, ..Options::default() }).0
}

/// Both functions start with this: r6 and r7 point into the packet, r8 to a value of a map, r9 is the context.
const START: &str = "
    r9 = r1
    *(u32 *)(r10 - 4) = 0
    *(u32 *)(r10 - 32) = 1
    r1 = map_fd[1] ll
    r2 = r10
    r2 += -4
    call 1
    if r0 == 0 goto none
    r8 = r0
    r6 = *(u32 *)(r9 + 0)
    r7 = *(u32 *)(r9 + 16)
    r7 &= 255
    r7 += r6
    r3 = 3
    r4 = 4
    r5 = 5
";
const END: &str = "
    exit
none:
    r0 = 0
    exit
";

/// `first`, then a branch of which both arms meet again, then `middle`, then `last`; a loop is somewhere, so that
/// the functions cannot be put into one formula.
fn around(first: &str, middle: &str, last: &str) -> String {
    format!(
        "{START}
        r0 = 0
    wait:
        r0 += 1
        r1 = *(u32 *)(r9 + 12)
        if r0 < 3 goto wait
        {first}
        if r1 > 9 goto other
        *(u32 *)(r10 - 40) = 1
        goto join
    other:
        *(u32 *)(r10 - 40) = 2
    join:
        {middle}
        {last}
        r1 = *(u32 *)(r10 - 40)
        r0 += r1
        {END}"
    )
}

/// Both sides with the same `middle`.
#[derive(Clone, Copy)]
struct Sides {
    old: (&'static str, &'static str),
    new: (&'static str, &'static str),
}

impl Sides {
    fn verdict(self, middle: &str) -> Verdict {
        let text = |(first, last)| function(&around(first, middle, last));
        verdict(&text(self.old), &text(self.new))
    }

    #[track_caller]
    fn proven(self, middle: &str) {
        let v = self.verdict(middle);
        assert!(v.is_equal(), "{v:?} behind `{middle}`");
    }

    #[track_caller]
    fn refused(self, middle: &str) {
        assert!(!self.verdict(middle).is_equal(), "proven equal behind `{middle}`");
    }
}

/// The old side loads again what it still has.
const AGAIN: Sides = Sides {
    old: ("r2 = *(u16 *)(r6 + 4)", "r3 = *(u16 *)(r6 + 4)\nr0 = r3"),
    new: ("r2 = *(u16 *)(r6 + 4)", "r0 = r2"),
};
/// The old side has it no more.
const LOST: Sides = Sides {
    old: ("r2 = *(u16 *)(r6 + 4)\nr3 = r2\nr3 += 1\nr2 = 7", "r5 = *(u16 *)(r6 + 4)\nr0 = r5\nr0 ^= r3"),
    new: ("r5 = *(u16 *)(r6 + 4)\nr3 = r5\nr3 += 1", "r0 = r5\nr0 ^= r3"),
};

const HARMLESS: [&str; 6] = [
    "",
    "*(u64 *)(r6 + 8) = 1",
    "*(u8 *)(r6 + 6) = 1",
    "*(u32 *)(r8 + 4) = 1",
    "*(u64 *)(r10 - 16) = r1",
    "if r1 == 4 goto here\n*(u8 *)(r6 + 3) = 1\nhere:",
];

const HARMFUL: [&str; 11] = [
    "*(u8 *)(r6 + 4) = 1",
    "*(u8 *)(r6 + 5) = 1",
    "*(u64 *)(r6 + 0) = 1",
    "*(u32 *)(r6 + 5) = r1",
    // The same place, perhaps.
    "*(u16 *)(r7 + 4) = r1",
    "*(u8 *)(r7 + 5) = r1",
    "if r1 == 4 goto here\n*(u8 *)(r6 + 4) = 1\nhere:",
    // Nobody knows where that leads.
    "r1 = *(u64 *)(r8 + 16)\n*(u16 *)(r1 + 4) = 1",
    "if r1 == 4 goto here\nr7 = r8\nhere:\n*(u8 *)(r7 + 4) = 1",
    "r6 += 1",
    "r6 = r7",
];

#[test]
fn what_is_loaded_again_is_carried() {
    for sides in [AGAIN, LOST] {
        HARMLESS.iter().for_each(|m| sides.proven(m));
    }
}

/// A seqlock's recheck and a flag that a loop waits for look redundant and are not.
#[test]
fn shared_memory_is_not_carried_at_all() {
    for sides in [AGAIN, LOST] {
        let shared = |(first, last): (&str, &str)| (first.replace("(r6", "(r8"), last.replace("(r6", "(r8"));
        let (old, new) = (shared(sides.old), shared(sides.new));
        for middle in ["", "*(u64 *)(r10 - 16) = r1", "*(u8 *)(r6 + 6) = 1", "r3 = *(u8 *)(r8 + 0)", "call 5", "call 7"]
        {
            let text = |(first, last): &(String, String)| function(&around(first, middle, last));
            assert!(!verdict(&text(&old), &text(&new)).is_equal(), "proven equal behind `{middle}`");
        }
    }
}

#[test]
fn what_may_have_changed_is_not_carried() {
    for sides in [AGAIN, LOST] {
        HARMFUL.iter().for_each(|m| sides.refused(m));
    }
}

#[test]
fn private_memory_is_carried_over_a_call() {
    // In registers that outlive it, so that nothing else is wrong.
    let sides = |base: &'static str| match base {
        "r6" => {
            Sides { old: ("r7 = *(u16 *)(r6 + 4)", "r0 = *(u16 *)(r6 + 4)"), new: ("r7 = *(u16 *)(r6 + 4)", "r0 = r7") }
        }
        _ => Sides {
            old: ("*(u64 *)(r10 - 48) = r7", "r0 = *(u64 *)(r10 - 48)"),
            new: ("*(u64 *)(r10 - 48) = r7", "r0 = r7"),
        },
    };
    for base in ["r6", "r10"] {
        sides(base).proven("");
    }
    sides("r6").proven("call 5");
    sides("r6").refused("r1 = r9\nr2 = 4\ncall 44");
    // The frame is private, until its address is known to others.
    sides("r10").proven("call 5");
    let leak = "r1 = r10\nr1 += -48\nr2 = 0\nr3 = 0\nr4 = 0\nr5 = 0\ncall 12345";
    sides("r10").refused(leak);
    sides("r10").refused("*(u8 *)(r10 - 46) = 1");
    sides("r10").refused("r1 = r10\nr1 += -48\nr2 = 8\nr3 = 0\ncall 4");
}

#[test]
fn another_place_width_or_sign_is_not_the_same() {
    for other in ["*(u16 *)(r6 + 6)", "*(u8 *)(r6 + 4)", "*(u32 *)(r6 + 4)", "*(s16 *)(r6 + 4)", "*(u16 *)(r8 + 4)"] {
        for (sides, reg) in [(AGAIN, "r2"), (LOST, "r5")] {
            let plain = |part: &str| around(part, "", "");
            assert!(plain(sides.new.0).contains("*(u16 *)(r6 + 4)"));
            let load = format!("{reg} = {other}");
            let first = sides.new.0.replace(&format!("{reg} = *(u16 *)(r6 + 4)"), &load);
            // Whether the old side loads the other thing first as well or not.
            let firsts = [sides.old.0.to_string(), sides.old.0.replace("*(u16 *)(r6 + 4)", other)];
            for old in firsts {
                let (a, b) = (around(&old, "", sides.old.1), around(&first, "", sides.new.1));
                assert!(!verdict(&function(&a), &function(&b)).is_equal(), "proven equal:\n{a}\n---\n{b}");
            }
        }
    }
}

#[test]
fn both_ways_must_bring_the_value() {
    let text = |arms: [&str; 2], last: &str| {
        let base = around("", "", last);
        let base = base.replace("*(u32 *)(r10 - 40) = 1\n", &format!("*(u32 *)(r10 - 40) = 1\n{}\n", arms[0]));
        function(&base.replace("*(u32 *)(r10 - 40) = 2\n", &format!("*(u32 *)(r10 - 40) = 2\n{}\n", arms[1])))
    };
    let (load, again, kept) = ("r2 = *(u16 *)(r6 + 4)", "r0 = *(u16 *)(r6 + 4)", "r0 = r2");
    assert!(verdict(&text([load, load], again), &text([load, load], kept)).is_equal());
    for wrong in ["r2 = 7", "r2 = *(u16 *)(r6 + 6)", "r2 = *(u16 *)(r6 + 4)\nr2 += 1", "r2 = *(u16 *)(r7 + 4)"] {
        for arms in [[load, wrong], [wrong, load]] {
            assert!(!verdict(&text(arms, again), &text(arms, kept)).is_equal(), "proven equal: {arms:?}");
        }
    }
    // In one arm behind a store, in the other not.
    let stored = "r2 = *(u16 *)(r6 + 4)\n*(u16 *)(r6 + 4) = 9";
    assert!(!verdict(&text([load, stored], again), &text([load, stored], kept)).is_equal());
    // Only the old side loads, and only in one arm: the new one would read more often.
    let early = function(&around(load, "", "r0 = 1\nif r1 == 5 goto here\nr0 = r2\nhere:"));
    let late = function(&around("", "", "r0 = 1\nif r1 == 5 goto here\nr0 = *(u16 *)(r6 + 4)\nhere:"));
    assert!(!verdict(&late, &early).is_equal());
}

#[test]
fn loops_carry_what_they_do_not_change() {
    let text = |step: &str, body: &str| {
        function(&format!(
            "{START}
            r2 = *(u16 *)(r6 + 4)
            r3 = 0
            r1 = 0
        again:
            {step}
            r1 += r4
            {body}
            r3 += 1
            if r3 < 5 goto again
            r0 = r1
            {END}"
        ))
    };
    let check = |body: &str| verdict(&text("r4 = *(u16 *)(r6 + 4)", body), &text("r4 = r2", body)).is_equal();
    for right in ["", "*(u64 *)(r6 + 8) = r1", "r5 += r2", "*(u64 *)(r8 + 4) = r1"] {
        assert!(check(right), "not proven: {right}");
    }
    for wrong in [
        "*(u16 *)(r6 + 4) = r1",
        "*(u8 *)(r7 + 5) = r1",
        "r2 += 1",
        "r6 += 1",
        "r2 = *(u16 *)(r6 + 6)",
        "if r3 != 3 goto here\n*(u8 *)(r6 + 5) = r1\nhere:",
        "if r3 != 3 goto here\nr6 = r7\nhere:",
    ] {
        assert!(!check(wrong), "proven equal: {wrong}");
    }
}

#[test]
fn distances_between_registers_are_carried() {
    let with = |step: &str, last: &str| {
        around("r2 = r6\nr2 += 9", "r6 += 2", &format!("{step}\nr0 = *(u8 *)(r2 + 0)\n{last}"))
    };
    let check = |step: &str, last: &str| {
        verdict(&function(&with("r2 = r6\nr2 += 14", "")), &function(&with(step, last))).is_equal()
    };
    assert!(check("r2 += 7", ""));
    assert!(!check("r2 += 6", "") && !check("r2 += 8", "") && !check("w2 += 7", "") && !check("r2 += 7", "r0 += 1"));
}

#[test]
fn a_packet_pointer_is_not_carried_over_its_moving() {
    let sides =
        Sides { old: ("r7 = *(u32 *)(r9 + 0)", "r0 = *(u32 *)(r9 + 0)"), new: ("r7 = *(u32 *)(r9 + 0)", "r0 = r7") };
    sides.proven("");
    sides.proven("call 5");
    sides.refused("r1 = r9\nr2 = -8\ncall 44");
}

/// A random operation, of few kinds on few places, so that much is alike.
fn operation(rng: &mut Rng) -> String {
    let d = rng.one_of(&[0, 2, 3, 4, 5, 7]);
    let s = rng.one_of(&[0, 2, 3, 4, 5, 7]);
    let size = rng.one_of(&["u16", "u16", "u16", "u8", "u32"]);
    let place = rng.one_of(&["r6 + 2", "r6 + 2", "r6 + 4", "r6 + 3", "r10 - 8", "r10 - 8", "r10 - 6", "r10 - 16"]);
    let fits = place.starts_with("r6") || size != "u32" || place != "r10 - 6";
    let size = if fits { size } else { "u16" };
    match rng.below(16) {
        0..=8 => format!("r{d} = *({size} *)({place})"),
        9 => format!("*({size} *)({place}) = r{s}"),
        10 => format!("r{d} = r{s}"),
        11 => format!("r{d} += {}", rng.one_of(&[1, 2])),
        12 => format!("r{d} ^= r{s}"),
        13 => format!("r{d} = *(u64 *)(r10 - 8)"),
        14 => "r6 += 1".into(),
        _ => format!("w{d} = w{s}"),
    }
}

/// A random function: arms that meet, loops, calls, loads of the same few places.
fn program(rng: &mut Rng) -> Vec<String> {
    let mut p: Vec<String> =
        ["r6 = *(u32 *)(r1 + 0)", "r2 = *(u32 *)(r1 + 12)", "r3 = *(u32 *)(r1 + 16)"].map(String::from).to_vec();
    p.extend(["*(u64 *)(r10 - 8) = r2", "*(u64 *)(r10 - 16) = r3"].map(String::from));
    p.extend([0, 4, 5, 7, 8].map(|r| format!("r{r} = {r}")));
    // A loop, so that this is no case for one formula, which is another proof.
    p.extend(["first:", "r8 += 1", "if r8 < 10 goto first"].map(String::from));
    for n in 0..2 + rng.below(3) {
        let some = |rng: &mut Rng, out: &mut Vec<String>, most: u64| {
            (0..rng.below(most)).for_each(|_| out.push(operation(rng)));
        };
        some(rng, &mut p, 4);
        let d = rng.one_of(&[0, 2, 3, 4, 5, 7]);
        let cond = rng.one_of(&["== 0", "> 7", "s> 0", "& 1", "!= 255"]);
        match rng.below(5) {
            0 => {
                p.push("call 5".into());
                p.extend((2..6).map(|r| format!("r{r} = {r}")));
            }
            1 => {
                p.push("r8 = 0".into());
                p.push(format!("top{n}:"));
                some(rng, &mut p, 4);
                p.push("r8 += 1".into());
                p.push(format!("if r8 < 3 goto top{n}"));
            }
            _ => {
                p.push(format!("if r{d} {cond} goto else{n}"));
                some(rng, &mut p, 3);
                p.push(format!("goto join{n}"));
                p.push(format!("else{n}:"));
                some(rng, &mut p, 3);
                p.push(format!("join{n}:"));
            }
        }
    }
    (0..1 + rng.below(3)).for_each(|_| p.push(operation(rng)));
    p.extend(["r0 ^= r2", "r0 += r3", "r0 ^= r4", "exit"].map(String::from));
    p
}

/// A load replaced by a register that holds the result of another one, or an operation moved.
fn carrying(rng: &mut Rng, p: &[String]) -> Option<Vec<String>> {
    let load = |l: &String| l.starts_with('r') && l.contains(" = *(") && !l.contains("r1 ");
    let loads: Vec<usize> = (13..p.len()).filter(|i| load(&p[*i])).collect();
    if loads.is_empty() {
        return None;
    }
    let i = rng.one_of(&loads);
    let (dst, what) = p[i].split_once(" = ")?;
    let mut q = p.to_vec();
    let alike: Vec<usize> = loads.iter().copied().filter(|j| *j != i && p[*j].ends_with(what)).collect();
    match rng.below(4) {
        0 => {
            let (_, other) = p[rng.one_of(&loads)].split_once(" = ")?;
            q[i] = format!("{dst} = {other}");
        }
        1 | 2 if !alike.is_empty() => {
            let (holder, _) = p[rng.one_of(&alike)].split_once(" = ")?;
            q[i] = format!("{dst} = {holder}");
        }
        _ => q[i] = format!("{dst} = {}", rng.one_of(&["r0", "r2", "r3", "r4", "r5", "r7"])),
    }
    Some(q)
}

#[test]
fn what_is_proven_of_random_functions_runs_alike() {
    let mut rng = Rng::new(0xca77_1ed0);
    let (mut tried, mut equal, mut across) = (0u32, 0u32, 0u32);
    for _ in 0..rounds(60) {
        let p = program(&mut rng);
        let old = function(&p.join("\n"));
        for _ in 0..4 {
            let Some(q) = carrying(&mut rng, &p).filter(|q| *q != p) else { continue };
            let new = function(&q.join("\n"));
            tried += 1;
            let loops = p.iter().any(|l| l.starts_with("top"));
            // Most are wrong; to look for long how they might be right is of no use here.
            let deadline = Instant::now().checked_add(Duration::from_millis(60));
            let limits = Limits { conflicts: 200, work: 300_000, deadline };
            if !within(limits, &old, &new).is_equal() {
                continue;
            }
            equal += 1;
            across += u32::from(loops);
            for seed in 0..24 {
                let seed = mix(seed ^ u64::from(tried) << 8);
                let (Ok(a), b) = (functions::run(&old, seed), functions::run(&new, seed)) else { continue };
                assert_eq!(Some(&a), b.as_ref().ok(), "seed {seed}:\n{}\n---\n{}", p.join("\n"), q.join("\n"));
            }
        }
    }
    println!("{tried} tried, {equal} proven, {across} of them with loops");
    assert!(tried > 120 && equal > 20 && across > 5, "{tried} tried, {equal} proven, {across} with loops");
}
