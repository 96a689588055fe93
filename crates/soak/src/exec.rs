//! Lane `exec`: random programs in the interpreter and in the kernel.
//!
//! One load serves many packets. Compared are return value, packet with its metadata, and all elements of both maps.
//! Executed instructions are counted by the interpreter, and only of runs that were compared.

use bpf_driver::difftest::Random;
use bpf_kernel::{Feature, Map, ProgramType, RawOptions, RawProgram, supports};
use bpf_program::{Function, ProgKind};
use bpf_semantics::interp::{Fault, KernelHost, MapSpec};

use crate::generate::{self, Abilities, MAPS, Program};
use crate::{Lane, Tally};

/// Programs of a unit.
const PROGRAMS: u64 = 4;
/// Packets each of them gets.
const PACKETS: u64 = 24;
/// Steps of one run: many more than a generated program can take.
const FUEL: u64 = 1 << 22;

/// The lane, with maps of its own in the kernel.
pub struct Exec {
    maps: [Map; 2],
    abilities: Abilities,
}

/// What can be seen of a run.
#[derive(PartialEq, Eq, Debug)]
struct Seen {
    retval: u32,
    packet: Vec<u8>,
    maps: [Contents; 2],
}

type Contents = Vec<(Vec<u8>, Vec<u8>)>;

impl Exec {
    /// The lane, where this kernel can be asked.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn new() -> Result<Exec, String> {
        bpf_kernel::permitted().require().map_err(|e| e.to_string())?;
        let map = |i: usize| {
            let (_, kind, key, value, max) = MAPS[i];
            Map::create(kind, key, value, max).map_err(|e| e.to_string())
        };
        let load_acquire = supports(Feature::LoadAcquire).map_err(|e| e.to_string())?;
        Ok(Exec { maps: [map(0)?, map(1)?], abilities: Abilities { load_acquire } })
    }

    fn in_kernel(&self, loaded: &RawProgram, packet: &[u8], contents: &[Contents; 2]) -> Result<Seen, String> {
        let text = |e: bpf_kernel::KernelError| e.to_string();
        for key in self.maps[1].keys().map_err(text)? {
            self.maps[1].delete(&key).map_err(text)?;
        }
        for (map, contents) in self.maps.iter().zip(contents) {
            for (k, v) in contents {
                map.update(k, v).map_err(text)?;
            }
        }
        let run = loaded.test_run(packet, None, 1).map_err(text)?;
        let mut maps = [self.maps[0].entries().map_err(text)?, self.maps[1].entries().map_err(text)?];
        maps[1].sort();
        Ok(Seen { retval: run.retval, packet: run.data_out, maps })
    }

    /// Leaves out of a program what it can do without and still be run differently.
    fn smallest(&self, mut program: Program, mut what: String, inputs: &Random) -> (Program, String) {
        loop {
            let (mut n, mut shorter) = (0, false);
            while let Some(candidate) = program.without(n) {
                if candidate == program {
                    n += 1;
                    continue;
                }
                match self.check(&candidate, &mut inputs.clone(), &mut Tally::default()) {
                    // Only what the kernel ran counts; the interpreter may stumble over what the verifier refuses.
                    Err(still) if still.starts_with(&what[..16]) => {
                        (program, what, shorter) = (candidate, still, true);
                    }
                    _ => n += 1,
                }
            }
            if !shorter {
                return (program, what);
            }
        }
    }

    /// One program on its packets.
    fn check(&self, program: &Program, r: &mut Random, tally: &mut Tally) -> Result<(), String> {
        let bytes = program.encode([0, 1].map(|i| self.maps[i].fd() as u64))?;
        let kind = if program.kind == ProgKind::Xdp { ProgramType::XDP } else { ProgramType::SCHED_CLS };
        let loaded = match RawProgram::load(kind, &bytes, &RawOptions::default()) {
            Ok(p) => p,
            Err(refusal) => {
                tally.count("programs refused by the verifier", 1);
                // Only the first lines of a campaign's refusals matter, and only to who improves the generator.
                if std::env::var_os("BPF_OPT_TRACE").is_some() {
                    let tail: Vec<&str> = refusal.log.lines().rev().take(8).collect();
                    eprintln!("refused: {}\n{}", refusal.reason(), tail.join("\n"));
                }
                return Ok(());
            }
        };
        tally.count("programs", 1);
        let graphs = program.graphs()?;
        for _ in 0..PACKETS {
            let (packet, contents) = (generate::packet(r), generate::contents(r));
            let theirs = self.in_kernel(&loaded, &packet, &contents)?;
            let (ours, steps) = interpret(&graphs, &packet, &contents)
                .map_err(|fault| format!("the interpreter stops: {fault}\npacket {packet:02x?}\n"))?;
            if theirs != ours {
                return Err(format!("{}\npacket {packet:02x?}\nmaps {contents:02x?}\n", differences(&theirs, &ours)));
            }
            tally.count("instructions", steps);
            tally.count("runs", 1);
        }
        Ok(())
    }
}

/// A run in the interpreter, and how many instructions it took.
fn interpret(graphs: &[Function], packet: &[u8], contents: &[Contents; 2]) -> Result<(Seen, u64), Fault> {
    let mut interp = world(graphs[0].kind, packet, contents).start();
    interp.cpu.recording = false;
    for f in &graphs[1..] {
        interp.add_function(f.clone());
    }
    let outcome = interp.run(&graphs[0], FUEL)?;
    let host = &mut interp.host;
    let packet = [host.metadata(), host.packet()].concat();
    let array = (0..MAPS[0].4).map(|i| i.to_le_bytes().to_vec());
    let array = array.map(|k| (k.clone(), host.map_lookup(0, &k).unwrap_or_default())).collect();
    Ok((Seen { retval: outcome.r0 as u32, packet, maps: [array, host.map_entries(1)] }, outcome.steps))
}

/// The world of a generated program.
pub(crate) fn world(kind: ProgKind, packet: &[u8], contents: &[Contents; 2]) -> KernelHost {
    let mut host = KernelHost::new(kind, packet);
    for ((name, map_type, key_size, value_size, max_entries), contents) in MAPS.into_iter().zip(contents) {
        let map = host.add_map(MapSpec { name: name.into(), map_type, key_size, value_size, max_entries });
        for (k, v) in contents {
            // There is room: contents are made for these maps.
            let _ = host.map_update(map, k, v);
        }
    }
    host
}

fn differences(theirs: &Seen, ours: &Seen) -> String {
    let mut text = String::from("kernel and interpreter differ:");
    if theirs.retval != ours.retval {
        text += &format!("\n  return value {:#x} and {:#x}", theirs.retval, ours.retval);
    }
    if theirs.packet != ours.packet {
        let at = theirs.packet.iter().zip(&ours.packet).position(|(a, b)| a != b);
        let at = at.unwrap_or(0);
        let word = |p: &[u8]| format!("{:02x?}", p.iter().skip(at & !7).take(8).collect::<Vec<_>>());
        let (a, b) = (word(&theirs.packet), word(&ours.packet));
        let lengths = (theirs.packet.len(), ours.packet.len());
        text += &format!("\n  packet of {} and {} bytes, from byte {}: {a} and {b}", lengths.0, lengths.1, at & !7);
    }
    for (name, a, b) in [("array", &theirs.maps[0], &ours.maps[0]), ("hash", &theirs.maps[1], &ours.maps[1])] {
        if let Some((x, y)) = a.iter().zip(b).find(|(x, y)| x != y) {
            text += &format!("\n  map {name}: {x:02x?}\n        and {y:02x?}");
        } else if a.len() != b.len() {
            text += &format!("\n  map {name}: {} and {} elements", a.len(), b.len());
        }
    }
    text
}

impl Lane for Exec {
    fn name(&self) -> &'static str {
        "exec"
    }

    fn unit(&mut self, seed: u64, index: u64, tally: &mut Tally) {
        let mut r = Random::of(seed ^ 0xe8ec, index);
        for _ in 0..PROGRAMS {
            let program = generate::program(&mut r, self.abilities);
            // Its own numbers, so that a program is the same however many packets the ones before got.
            let inputs = Random::new(r.next());
            if let Err(what) = self.check(&program, &mut inputs.clone(), tally) {
                let (program, what) = self.smallest(program, what, &inputs);
                tally.disagree(seed, index, format!("{what}\n{}", program.listing()));
            }
        }
    }
}
