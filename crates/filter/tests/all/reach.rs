//! Fields at places that packets say, by whatever arithmetic, beside fields that are near: in the kernel the verdict is that of
//! libpcap's code before its optimizer. What the verifier does not follow may cost no packet that is not asked for it.
//!
//! `BPF_OPT_FUZZ_SECONDS=600 BPF_OPT_FUZZ_SEED=7 cargo test -p bpf-filter fields_at_places` goes on for so long.

use std::time::{Duration, Instant};

use bpf_filter::{Actions, Beside, EbpfForm, Hook, Options, Packet, compile};
use bpf_kernel::testing::permitted;
use bpf_kernel::{LoadOptions, LoadedObject};
use bpf_pcap_oracle::{Libpcap, interpreter};
use fastrand::Rng;

use crate::common::{by_libpcap, link_type, options, seen};
use crate::fuzz::{is_mixed, number};
use crate::kernel::{hooks, returned};

fn one<T: Copy>(random: &mut Rng, all: &[T]) -> T {
    all[random.usize(0..all.len())]
}

/// Filters whose fields stand at computed places.
struct Places<'a> {
    random: &'a mut Rng,
}

impl Places<'_> {
    fn chance(&mut self, of: u32) -> bool {
        self.random.u32(0..of) == 0
    }

    /// How far behind a place.
    fn distance(&mut self) -> u32 {
        const FAR: [u32; 12] =
            [1000, 3000, 32_700, 64_000, 64_511, 65_200, 65_270, 65_400, 65_475, 65_500, 65_520, 65_535];
        match self.random.u32(0..8) {
            0..=2 => self.random.u32(0..60),
            3 => self.random.u32(64_000..65_540),
            4 => one(self.random, &[65_536, 70_000, 0x7fff_fff0, 0xffff_fff0, 0xffff_0000]),
            _ => one(self.random, &FAR) + self.random.u32(0..3),
        }
    }

    /// A number that a packet has.
    fn leaf(&mut self) -> &'static str {
        const LEAVES: [&str; 14] = [
            "ip[0]",
            "ip[8]",
            "ip[8]",
            "ip[1]",
            "ip[2:2]",
            "ip[2:2]",
            "ip[4:2]",
            "ip[4:4]",
            "ip[6:2]",
            "ether[20]",
            "ether[22]",
            "ether[16:2]",
            "len",
            "udp[4:2]",
        ];
        one(self.random, &LEAVES)
    }

    fn number(&mut self, deep: u32) -> String {
        if deep == 0 || self.chance(3) {
            return self.leaf().to_owned();
        }
        let a = self.number(deep - 1);
        let n = one(self.random, &[1, 2, 3, 4, 5, 8, 15, 16, 60, 100, 255, 256, 1000, 65_535]);
        let b = if self.chance(3) { format!("({})", self.number(deep - 1)) } else { n.to_string() };
        match self.random.u32(0..14) {
            0 => format!("({a})+{b}"),
            1 => format!("({a})-{b}"),
            2 => format!("{b}-({a})"),
            3 => format!("({a})*{b}"),
            4 => format!("({a})/{n}"),
            5 => format!("({a})%{n}"),
            6 => format!("({a})&{b}"),
            7 => format!("({a})|{b}"),
            8 => format!("({a})^{b}"),
            9 => format!("({a})>>{}", self.random.u32(0..32)),
            10 => format!("({a})<<{}", self.random.u32(0..32)),
            11 => format!("(({a})&15)<<(({b}){})", one(self.random, &["", "&3", "&31"])),
            12 => format!("({a})+{}", one(self.random, &[0x2000_0000u32, 0x7fff_ffff, 0xdfff_ffff, 0x3f58_0000])),
            _ => format!("({a})/({b})"),
        }
    }

    /// A comparison of a field at a computed place, or at a fixed one.
    fn field(&mut self, places: &[String]) -> String {
        let header = one(self.random, &["ether", "ether", "ether", "ip", "ip", "tcp", "udp"]);
        let place = places[self.random.usize(0..places.len())].clone();
        let offset = match self.random.u32(0..7) {
            0 => place,
            1..=4 => format!("({place})+{}", self.distance()),
            5 => format!("({place})-{}", self.random.u32(0..70)),
            _ => self.distance().to_string(),
        };
        let size = one(self.random, &["", "", ":2", ":4"]);
        let relation = one(self.random, &["=", "!=", ">", "<="]);
        format!("{header}[{offset}{size}] {relation} {}", self.random.u32(0..9))
    }

    fn guard(&mut self) -> &'static str {
        one(self.random, &["udp", "tcp", "ip", "tcp port 80", "udp port 53", "ip[8] > 9", "not tcp", "host 10.0.0.1"])
    }

    fn filter(&mut self) -> String {
        // Few places, so that fields near and far are behind the same one.
        let places: Vec<String> = (0..1 + self.random.usize(0..2)).map(|_| self.number(2)).collect();
        let mut text = match self.random.u32(0..12) {
            0 => "geneve and (",
            1 => "vlan and (",
            2 => "not vlan and (",
            _ => "(",
        }
        .to_owned();
        for i in 0..2 + self.random.usize(0..3) {
            if i > 0 {
                text += one(self.random, &[" or ", " or ", " or ", " and "]);
            }
            let field = self.field(&places);
            text += &match self.random.u32(0..6) {
                0 => field,
                1 => format!("not {field}"),
                2 => self.guard().to_owned(),
                _ => format!("({} and {field})", self.guard()),
            };
        }
        text + ")"
    }

    fn packet(&mut self, text: &str) -> Vec<u8> {
        let random = &mut *self.random;
        let mut packet: Vec<u8> = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        if text.contains("vlan") && random.bool() {
            packet.extend([0x81, 0, 0, 5]);
        }
        let inner = |random: &mut Rng, packet: &mut Vec<u8>| {
            let total = one(random, &[20u16, 60, 100, 300, 1000, 1400, 3000]) + random.u16(0..40);
            packet.extend([8, 0, 0x40 | one(random, &[5u8, 5, 5, 6, 10, 15, 0]), random.u8(0..8)]);
            packet.extend(total.to_be_bytes());
            packet.extend([0, random.u8(0..4), 0, 0, random.u8(..), one(random, &[6u8, 6, 17, 17, 1]), 0, 0]);
            packet.extend([10, 0, 0, random.u8(0..3), 10, 0, 0, random.u8(0..3)]);
            packet.resize(packet.len() + (usize::from(packet[packet.len() - 20] & 15) * 4).saturating_sub(20), 1);
        };
        inner(random, &mut packet);
        packet.extend([0, one(random, &[80u8, 53, 9]), 0, one(random, &[80u8, 53, 9]), 0, random.u8(..), 0, 0]);
        if text.contains("geneve") && random.bool() {
            let at = packet.len();
            packet[at - 6..at - 4].copy_from_slice(&6081u16.to_be_bytes());
            packet[at - 8 - 11] = 17;
            let words = random.u8(0..4);
            packet.extend([words, 0, 0x65, 0x58, 0, 0, 1, 0]);
            packet.resize(packet.len() + 4 * usize::from(words), 0);
            packet.extend([2; 12]);
            inner(random, &mut packet);
            packet.extend([0, 80, 0, 53, 0, 9, 0, 0]);
        }
        let length = one(random, &[60usize, 64, 120, 300, 600, 1500, 3000, 3500]) + random.usize(0..20);
        while packet.len() < length {
            packet.push(random.u8(0..9));
        }
        let cut = if random.bool() { length } else { random.usize(14..=length) };
        packet.truncate(cut);
        packet
    }
}

#[derive(Default, Debug)]
struct Counts {
    filters: u64,
    programs: u64,
    /// Of these a field may be out of reach.
    far: u64,
    comparisons: u64,
    accepted: u64,
}

#[test]
fn fields_at_places_that_packets_say_cost_no_other_field() {
    /// Filters of a run that no time limits.
    const FILTERS: u64 = 120;
    const PACKETS: usize = 12;
    if !permitted() {
        return;
    }
    let Some(pcap) = Libpcap::for_test() else { return };
    let seconds = number("BPF_OPT_FUZZ_SECONDS");
    let seed = number("BPF_OPT_FUZZ_SEED").unwrap_or(1);
    let (started, mut counts, mut wrong) = (Instant::now(), Counts::default(), Vec::new());
    for i in 0.. {
        let is_over = match seconds {
            Some(seconds) => started.elapsed() > Duration::from_secs(seconds),
            None => i == FILTERS,
        };
        if is_over {
            break;
        }
        let mut random = Rng::with_seed(seed << 32 | i);
        let text = Places { random: &mut random }.filter();
        let packets: Vec<Vec<u8>> = (0..PACKETS).map(|_| Places { random: &mut random }.packet(&text)).collect();
        counts.filters += 1;
        for (hook, actions) in hooks() {
            let link = link_type(hook);
            let Ok(theirs) = by_libpcap(&pcap, link.0, &text) else { continue };
            for optimize in [true, false] {
                let of = Options { source: hook.source(), optimize, ..options(link) };
                let Ok(filter) = compile(&text, &of) else { continue };
                // Where headers begin varies: not optimized, no eBPF.
                let Ok(object) = filter.object(hook, actions) else { continue };
                let object = match LoadedObject::load(&object, &LoadOptions::default()) {
                    Ok(object) => object,
                    Err(e) => {
                        wrong.push(format!("{hook:?} {optimize} {text:?}: refused: {:.400}", e.to_string()));
                        continue;
                    }
                };
                let plain = compile(&text, &Options { optimize: false, ..of.clone() }).expect("a filter");
                let form = EbpfForm::program(hook, actions);
                counts.programs += 1;
                counts.far += u64::from(filter.beyond_reach(&form).is_some());
                for packet in &packets {
                    let seen = seen(hook, packet);
                    let Some(returned) = returned(&object, hook, packet) else { continue };
                    // libpcap for files does not know of tags beside the packet.
                    let is_ours = is_mixed(&text) || text.contains("vlan") && hook != Hook::Xdp;
                    let accepts = if is_ours {
                        let length = seen.len() as u32;
                        plain.run(&Packet { captured: seen, length, beside: Beside::default() }) != 0
                    } else {
                        interpreter::run(&theirs, seen, seen.len() as u32).verdict != 0
                    };
                    counts.comparisons += 1;
                    counts.accepted += u64::from(accepts);
                    if returned != wanted(accepts, actions) {
                        wrong.push(format!("{hook:?} {optimize} {text:?}: {returned}, not {accepts}: {packet:02x?}"));
                    }
                }
            }
        }
    }
    eprintln!("{counts:?} in {:.1} s", started.elapsed().as_secs_f64());
    assert!(wrong.is_empty(), "{} of {counts:?}:\n{}", wrong.len(), wrong[..wrong.len().min(20)].join("\n"));
    assert!(counts.far * 10 > counts.programs && counts.accepted * 10 > counts.comparisons, "{counts:?}");
}

fn wanted(accepts: bool, actions: Actions) -> i32 {
    if accepts { actions.matched } else { actions.other }
}
