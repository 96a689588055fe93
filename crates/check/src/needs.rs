//! What a program needs of the kernel that is to load it, by the tables of releases in `bpf_platform`.
//!
//! One idea: only what stands in the object is looked at, so each need has a place and an answer that holds whatever the
//! verifier of a release makes of the code. Newer verifiers follow more programs than older ones did; of that nothing is said
//! here.

use bpf_isa::{Call, Insn};
use bpf_platform::helpers::Helper;
use bpf_platform::since::{self, Feature};
use bpf_platform::{KernelVersion, maps, permissions};

use crate::cfg;
use crate::program::{MapInfo, Program, Target};

/// Where a need comes from.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Place {
    /// The program as a whole.
    Program,
    /// The map of that name.
    Map(String),
    /// The instruction at this slot of the linked code.
    Slot(usize),
}

/// What a program needs, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Need {
    /// Where.
    pub place: Place,
    /// What, by name.
    pub what: String,
    /// The first release that has it; `None` if no table says.
    pub since: Option<KernelVersion>,
    /// Whether a kernel of that release or later may lack it all the same, as only its BTF tells.
    pub uncertain: bool,
    /// The last release that is known not to have it, where those between it and `since` were not asked.
    pub not_in: Option<KernelVersion>,
}

impl Need {
    fn new(place: Place, what: impl Into<String>, since: Option<KernelVersion>) -> Need {
        Need { place, what: what.into(), since, uncertain: false, not_in: None }
    }

    fn of(place: Place, feature: Feature) -> Need {
        Need::new(place, feature.name, Some(feature.since))
    }

    /// Whether a kernel of this release does not have it.
    pub fn is_unknown_to(&self, kernel: KernelVersion) -> bool {
        match self.not_in {
            Some(last) => kernel <= last,
            None => self.since.is_some_and(|since| since > kernel),
        }
    }

    /// Whether the tables do not tell if a kernel of this release has it.
    pub fn is_undecided_for(&self, kernel: KernelVersion) -> bool {
        !self.is_unknown_to(kernel) && (self.uncertain || self.since.is_none_or(|since| since > kernel))
    }
}

/// A load or store of the context that some path has: its slot, and the byte of the context where it begins.
pub type ContextAccess = (usize, i64);

/// What a program needs, in the order of places. `contexts` are its accesses of the context, as [`crate::Report`] has them.
pub fn needs(program: &Program, contexts: &[ContextAccess]) -> Vec<Need> {
    let mut all = whole(program);
    all.extend(program.maps.iter().flat_map(map));
    let shared = program.subs.len() > 1;
    for (at, slot) in program.slots.iter().enumerate() {
        let Some(insn) = slot.insn else { continue };
        let place = || Place::Slot(at);
        match (insn, &slot.target) {
            (Insn::Call(Call::Helper(id)), Target::None) => {
                all.push(helper(place(), id));
                all.extend(let_call(program, place(), id));
                if shared && Helper::get(id).is_some_and(|h| h.effects.is_tail_call()) {
                    all.push(Need::of(place(), since::TAIL_CALLS_BESIDE_CALLS));
                }
            }
            // What the loader patches in: how it does that is told by what stands there.
            (Insn::Call(_), Target::Unknown(what)) => {
                let name = format!("{} ({what})", since::KERNEL_FUNCTIONS.name);
                let feature = Need::of(place(), since::KERNEL_FUNCTIONS);
                all.push(Need { what: name, uncertain: true, ..feature });
            }
            (Insn::Call(Call::Kfunc { .. }), _) => {
                all.push(Need { uncertain: true, ..Need::of(place(), since::KERNEL_FUNCTIONS) });
            }
            (Insn::LoadImm64 { .. }, Target::MapValue(..)) => all.push(Need::of(place(), since::GLOBAL_DATA)),
            (Insn::LoadImm64 { .. }, Target::Func(_)) => all.push(Need::of(place(), since::CALLBACKS)),
            (Insn::LoadImm64 { .. }, Target::Unknown(what)) => {
                all.push(Need { uncertain: true, ..Need::new(place(), what.clone(), None) });
            }
            (Insn::LoadImm64 { .. }, Target::Map(_)) => {}
            _ => all.extend(since::instruction(&insn).map(|f| Need::of(place(), f))),
        }
    }
    all.extend(cfg::jumps_back(program).into_iter().map(|at| Need::of(Place::Slot(at), since::LOOPS)));
    for &(at, off) in contexts {
        let found = since::field(program.kind, off);
        all.extend(
            found.map(|(structure, f)| Need {
                what: format!("{structure}: {}", f.name),
                ..Need::of(Place::Slot(at), f)
            }),
        );
    }
    all.sort_by(|a, b| a.place.cmp(&b.place));
    all
}

/// The first release that has all of it, as far as tables tell.
pub fn first_release(needs: &[Need]) -> Option<KernelVersion> {
    needs.iter().filter_map(|n| n.since).max()
}

fn whole(program: &Program) -> Vec<Need> {
    let kind = Some(program.kind).filter(|kind| *kind != 0);
    let of_type =
        kind.and_then(since::program_type).map(|since| Need::new(Place::Program, "program type", Some(since)));
    let features = [
        since::attach_type(program.attach),
        since::section(&program.section),
        (program.slots.len() > since::SHORT_PROGRAM).then_some(since::LONG_PROGRAMS),
    ];
    of_type.into_iter().chain(features.into_iter().flatten().map(|f| Need::of(Place::Program, f))).collect()
}

/// Every map of an object is made before its programs are loaded, whether they use it or not.
fn map(map: &MapInfo) -> Vec<Need> {
    let place = || Place::Map(map.name.clone());
    let name = maps::name(map.kind).map_or_else(|| format!("map type {}", map.kind), |n| format!("map type {n}"));
    let since = maps::since(map.kind);
    let of_type = (map.kind != maps::UNSPEC).then(|| Need::new(place(), name, since));
    let flags =
        maps::flags_since(map.flags).map(|(name, since)| Need::new(place(), format!("map flag {name}"), Some(since)));
    of_type.into_iter().chain(flags).collect()
}

fn helper(place: Place, id: i32) -> Need {
    let (what, since) = match Helper::get(id) {
        Some(h) => (format!("helper bpf_{} ({id})", h.name), Some(h.since)),
        None => (format!("helper {id}"), None),
    };
    Need::new(place, what, since)
}

/// A kernel may have a helper and not let programs of every type call it.
fn let_call(program: &Program, place: Place, id: i32) -> Option<Need> {
    let (last, first) = permissions::let_call_between(program.kind, program.attach, id)?;
    let name = Helper::get(id).map_or("", |h| h.name);
    let what = format!("helper bpf_{name} ({id}) for this type, not in {last} yet");
    Some(Need { not_in: Some(last), ..Need::new(place, what, Some(first)) })
}

#[cfg(test)]
mod tests {
    use bpf_isa::parse_listing;

    use super::*;
    use crate::Report;

    /// What an XDP program of this listing needs: place, name, release.
    fn of(listing: &str, maps: Vec<MapInfo>) -> Vec<(Place, String, String)> {
        let insns = parse_listing(listing).expect("a listing");
        let program = Program::of_insns(&insns, maps, 6, 37, true);
        let report = Report::of(&program);
        let release = |n: &Need| n.since.map_or("none".to_owned(), |v| v.to_string());
        needs(&program, &report.contexts).iter().map(|n| (n.place.clone(), n.what.clone(), release(n))).collect()
    }

    fn slot(at: usize, what: &str, release: &str) -> (Place, String, String) {
        (Place::Slot(at), what.to_owned(), release.to_owned())
    }

    #[test]
    fn each_need_has_its_place() {
        let found = of(
            "r2 = *(u32 *)(r1 + 16)\nr0 = 1\nif w2 == 0 goto +1\nr0 s/= 2\ncall 125\nr0 = 2\nexit\n",
            vec![MapInfo { name: "events".into(), kind: maps::RINGBUF, flags: 1 << 7, ..MapInfo::default() }],
        );
        let map = |what: &str, release: &str| (Place::Map("events".into()), what.to_owned(), release.to_owned());
        assert_eq!(
            found,
            [
                (Place::Program, "program type".to_owned(), "4.8".to_owned()),
                map("map type ringbuf", "5.8"),
                map("map flag BPF_F_RDONLY_PROG", "5.2"),
                slot(0, "xdp_md: rx_queue_index", "4.16"),
                slot(2, "32-bit jump", "5.1"),
                slot(3, "signed division", "6.6"),
                slot(4, "helper bpf_ktime_get_boot_ns (125)", "5.8"),
            ]
        );
    }

    #[test]
    fn a_jump_back_is_a_loop_and_two_ways_to_one_place_are_none() {
        let loops = |listing: &str| of(listing, vec![]).iter().filter(|n| n.1 == since::LOOPS.name).count();
        assert_eq!(loops("r0 = 0\nr0 += 1\nif r0 != 9 goto -2\nexit\n"), 1);
        assert_eq!(loops("r0 = 0\nif r0 == 0 goto +1\nr0 = 1\nif r0 == 1 goto +1\nr0 = 2\nexit\n"), 0);
        // Jumps forward only, then back to a place that no path on the way has been at.
        assert_eq!(loops("r0 = 0\ngoto +2\nr0 = 1\nexit\ngoto -3\n"), 0);
    }

    #[test]
    fn what_no_table_says_is_no_release() {
        let found = of("call 5000\nr0 = 2\nexit\n", vec![]);
        assert_eq!(found[1], slot(0, "helper 5000", "none"));
        let insns = parse_listing("call 5000\nr0 = 2\nexit\n").expect("a listing");
        let all = needs(&Program::of_insns(&insns, vec![], 6, 37, true), &[]);
        assert_eq!(first_release(&all), "4.8".parse().ok());
        let newest = KernelVersion { major: 99, minor: 0 };
        assert!(all[1].is_undecided_for(newest) && !all[0].is_undecided_for(newest));
    }

    /// `bpf_get_current_uid_gid` is there since 4.2; XDP programs may not call it in 6.12, and may in 6.18.
    #[test]
    fn a_helper_may_be_there_and_not_for_a_type() {
        let insns = parse_listing("call 15\nr0 = 2\nexit\n").expect("a listing");
        let all = needs(&Program::of_insns(&insns, vec![], 6, 37, true), &[]);
        let [_, there, allowed] = &all[..] else { panic!("{all:?}") };
        let v = |text: &str| text.parse::<KernelVersion>().expect("a version");
        assert!(!there.is_unknown_to(v("4.2")) && allowed.is_unknown_to(v("6.12")));
        assert!(allowed.is_undecided_for(v("6.15")) && !allowed.is_unknown_to(v("6.15")));
        assert!(!allowed.is_undecided_for(v("6.18")) && !allowed.is_unknown_to(v("6.18")));
        let tracing = needs(&Program::of_insns(&insns, vec![], 2, 0, true), &[]);
        assert_eq!(tracing.len(), 2, "{tracing:?}");
    }

    #[test]
    fn tail_calls_beside_functions_need_more_than_either() {
        let insns = parse_listing("r2 = 0 ll\ncall 12\ncall +1\nexit\nr0 = 0\nexit\n");
        let mut insns = insns.expect("a listing");
        insns[2] = Insn::Call(Call::Local(1));
        let all = needs(&Program::of_insns(&insns, vec![], 6, 37, true), &[]);
        assert_eq!(first_release(&all), "5.10".parse().ok());
    }
}
