//! What a call may do: to the memory behind its arguments, to the context, the packet, maps, fresh memory and locks.
//!
//! One idea: everybody who has to know what a call does asks [`Effects::of`] and gets a row: facts, liveness, prover,
//! interpreter and checker then agree because there is nothing to disagree about, and nobody needs a helper's number.
//! The rows are the table of [`crate::helpers`], whose source column names the kernel file of each helper's body. What
//! has no row (kernel functions, functions of the program, unknown numbers, calls that the loader patches) gets
//! `UNKNOWN`, which claims nothing: it reads, writes, copies and keeps whatever it can reach.
//!
//! What a row promises, it promises for every kernel that has the helper. A weaker claim is always right.

use bpf_isa::Reg;

use crate::prototype::{Arg, Len, Ret};

/// How much of an argument's memory a call writes where it succeeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Writes {
    /// Nothing.
    Nothing,
    /// Perhaps some bytes: a prefix, a few fields, or none.
    Some,
    /// Every byte.
    All,
}

/// What is in an argument's memory after a call that fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnFailure {
    /// What was there before, also because the call does not write it at all.
    Untouched,
    /// Zeros, in every byte.
    Zeroed,
    /// Not known: perhaps some bytes have been written.
    Partly,
}

/// What a call does to the memory that one argument points to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// Up to all of the bytes are read, or older verifiers demand that they are initialised.
    pub reads: bool,
    /// What is read may come back: it is stored where someone can read it, or the result tells it.
    pub copies: bool,
    /// The address is remembered after the call.
    pub keeps: bool,
    /// What is written if it succeeds.
    pub writes: Writes,
    /// What is there if it fails.
    pub on_failure: OnFailure,
    /// The argument is a kernel object that the verifier knows by type: never memory of the program.
    pub kernel_object: bool,
}

impl Access {
    /// The argument is a plain value.
    pub const NOTHING: Access = Access {
        reads: false,
        copies: false,
        keeps: false,
        writes: Writes::Nothing,
        on_failure: OnFailure::Untouched,
        kernel_object: false,
    };
    /// Nothing is known.
    pub const ANYTHING: Access = Access {
        reads: true,
        copies: true,
        keeps: true,
        writes: Writes::Some,
        on_failure: OnFailure::Partly,
        kernel_object: false,
    };

    /// Whether the argument leads to memory at all.
    pub fn is_memory(&self) -> bool {
        self.reads || self.writes() || self.kernel_object
    }

    /// Whether it may be written.
    pub fn writes(&self) -> bool {
        self.writes != Writes::Nothing
    }

    /// Whether every byte is overwritten, whatever happens.
    pub fn overwrites(&self) -> bool {
        self.writes == Writes::All && self.on_failure == OnFailure::Zeroed
    }

    /// The words of the table; `None` if there is one that is not known.
    pub(crate) fn parse(text: &str) -> Option<Access> {
        let mut a = Access::NOTHING;
        for word in text.split(' ') {
            match word {
                "-" => {}
                "read" => a.reads = true,
                "copy" => a.copies = true,
                "keep" => a.keeps = true,
                "object" => a.kernel_object = true,
                "write-all" => a.writes = Writes::All,
                "write-some" => a.writes = Writes::Some,
                "fail-zeroed" => a.on_failure = OnFailure::Zeroed,
                "fail-untouched" => a.on_failure = OnFailure::Untouched,
                "fail-partly" => a.on_failure = OnFailure::Partly,
                _ => return None,
            }
        }
        Some(a)
    }
}

/// How many bytes an argument points to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// It is a plain value.
    Nothing,
    /// A key of the map argument.
    Key,
    /// A value of the map argument.
    Value,
    /// So many.
    Bytes(u32),
    /// As many as this register holds.
    Register(Reg),
    /// Not known: a string, an object.
    Unknown,
}

/// One argument of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Argument {
    /// Where it is passed.
    pub register: Reg,
    /// What the verifier wants there.
    pub class: Arg,
    /// How much memory it points to.
    pub extent: Extent,
    /// What happens to that memory.
    pub access: Access,
    /// How many low bits of the register the helper looks at, by the type that the kernel's header declares (`BPF_CALL_x`
    /// in include/linux/filter.h casts to it). No proof relies on it; two calls that differ in others only are not called
    /// different.
    pub bits: u32,
}

/// What a call may do to the packet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Packet {
    /// Nothing.
    Untouched,
    /// Its bytes may change.
    Written,
    /// It may move, too: pointers to it are dead.
    Moved,
}

/// The numbers a helper may return, by the type that the kernel's header declares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResultRange {
    /// `u32`.
    U32,
    /// `long`: an error or a small number, which the kernel's own function has as an `int`.
    Int,
    /// Any of 64 bits.
    Any,
}

impl ResultRange {
    /// The number of this range whose low bits are those of `r0`.
    pub fn within(self, r0: u64) -> u64 {
        match self {
            ResultRange::U32 => u64::from(r0 as u32),
            ResultRange::Int => i64::from(r0 as i32) as u64,
            ResultRange::Any => r0,
        }
    }
}

/// What a call may do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Effects {
    /// The helper's name without `bpf_`; empty for what has no row.
    pub name: &'static str,
    /// That a program has such a call changes how the kernel runs it, whether the call is ever made or not.
    pub marks_program: bool,
    /// What r0 holds afterwards.
    pub result: Ret,
    /// Which numbers r0 may hold afterwards. No proof relies on it; it keeps examples of differences from being such that
    /// no kernel shows them.
    pub result_range: ResultRange,
    /// The arguments, r1 first.
    pub arguments: Vec<Argument>,
    /// The packet, through the context or a dynptr.
    pub packet: Packet,
    /// Fields of the program's context may read differently afterwards, whether or not it is an argument.
    pub changes_context: bool,
    /// A map's elements, their number, or what is in them may differ afterwards.
    pub changes_maps: bool,
    /// Memory that a helper handed out may be written, other than through an argument that points there.
    pub writes_fresh: bool,
    /// The memory behind the first argument, which a helper handed out, ends: to use it later is an error.
    pub ends_fresh: bool,
    /// It follows addresses stored in the memory it reads.
    pub indirect: bool,
    /// It runs a function of the program, now or later.
    pub calls_back: bool,
    /// Nothing is known: whatever it can reach may be read, changed and kept.
    pub touches_everything: bool,
    /// Nothing that anyone could notice changes and no memory argument is read: a call whose result nobody reads is
    /// dead. Two calls may still give two results.
    pub no_effect: bool,
    /// All calls in one run of a program give the same.
    pub constant: bool,
    /// Another run with the same input may get another result.
    pub volatile: bool,
    /// In `BPF_PROG_TEST_RUN`, with a network namespace and maps of its own, it changes nothing else on the machine.
    /// What a tail call or a callback does counts by itself.
    pub harmless: bool,
    /// The kernel file with the helper's body.
    pub source: &'static str,
}

impl Effects {
    /// The effects of what has no row: anything.
    pub fn unknown() -> &'static Effects {
        &UNKNOWN
    }

    /// Whether it may be left out where nobody reads its result.
    pub fn may_be_left_out(&self) -> bool {
        self.no_effect && !self.marks_program
    }

    /// Whether some of its calls have no effect: all, or lookups by key in maps that do not remember them.
    pub fn may_have_no_effect(&self) -> bool {
        self.may_be_left_out() || self.is_lookup_by_key()
    }

    /// Whether all its calls in one run give the same number and do nothing else, in programs that stay on their processor
    /// (`ProgKind::stays_on_its_processor`): two of them may be one. Not of helpers that have arguments or give a pointer: they are
    /// of programs that cannot be test-run, so no test has seen it.
    pub fn is_constant(&self) -> bool {
        self.constant && self.may_be_left_out() && self.arguments.is_empty() && self.result == Ret::Scalar
    }

    /// Whether it looks up an element of a map and changes nothing.
    pub fn is_map_lookup(&self) -> bool {
        self.result == Ret::MapValueOrNull && !self.changes_maps
    }

    /// Whether the plain lookup by key, of which two of one key may be taken for one.
    pub fn is_lookup_by_key(&self) -> bool {
        self.is_map_lookup() && matches!(self.arguments[..], [_, Argument { class: Arg::Key, .. }])
    }

    /// Whether it does nothing but change elements of the map it is given, so that nothing hangs on its being there, either.
    pub fn only_changes_a_map(&self) -> bool {
        let is_plain = |a: &Argument| matches!(a.class, Arg::Key | Arg::Value | Arg::OutValue | Arg::Scalar);
        let aside = self.changes_context || self.writes_packet() || self.writes_fresh || self.ends_fresh;
        let more = self.touches_everything || self.calls_back || self.marks_program;
        self.changes_maps
            && !aside
            && !more
            && matches!(&self.arguments[..], [first, rest @ ..] if first.class == Arg::Map && rest.iter().all(is_plain))
    }

    /// Whether it leaves the program for another one.
    pub fn is_tail_call(&self) -> bool {
        self.result == Ret::NoReturnOnSuccess
    }

    /// Whether it may change the bytes of the packet.
    pub fn writes_packet(&self) -> bool {
        self.packet != Packet::Untouched
    }

    /// Whether pointers to the packet die.
    pub fn moves_packet(&self) -> bool {
        self.packet == Packet::Moved
    }

    /// Whether the memory that r0 leads to may be anything but the frame: a slice of a map value, of a reservation or
    /// of the packet (`bpf_dynptr_data` in `kernel/bpf/helpers.c`).
    pub fn result_is_a_slice(&self) -> bool {
        self.result == Ret::Slice
    }

    /// The register that holds the map it works on.
    pub fn map_register(&self) -> Option<Reg> {
        self.arguments.iter().find(|a| a.class == Arg::Map).map(|a| a.register)
    }
}

/// The row of what has none.
static UNKNOWN: std::sync::LazyLock<Effects> = std::sync::LazyLock::new(|| Effects {
    name: "",
    result: Ret::Unknown,
    result_range: ResultRange::Any,
    marks_program: false,
    arguments: (1..=5).filter_map(Reg::new).map(Argument::unknown).collect(),
    packet: Packet::Moved,
    changes_context: true,
    changes_maps: true,
    writes_fresh: true,
    ends_fresh: true,
    indirect: true,
    calls_back: true,
    touches_everything: true,
    no_effect: false,
    constant: false,
    volatile: true,
    harmless: false,
    source: "",
});

impl Argument {
    /// An argument of which nothing is known.
    fn unknown(register: Reg) -> Argument {
        Argument { register, class: Arg::Opaque, extent: Extent::Unknown, access: Access::ANYTHING, bits: 64 }
    }

    /// The argument of this class; `bytes` if it is an opaque one of known length.
    pub(crate) fn new(register: Reg, class: Arg, bytes: Option<u32>, access: Access) -> Argument {
        let extent = match class {
            Arg::Map | Arg::Ctx | Arg::Size | Arg::Scalar | Arg::Func => Extent::Nothing,
            Arg::Key => Extent::Key,
            Arg::Value | Arg::OutValue => Extent::Value,
            Arg::Mem { len: Len::Bytes(n), .. } | Arg::Probe { len: Len::Bytes(n) } => Extent::Bytes(n),
            Arg::Mem { len: Len::Arg(n), .. } | Arg::Probe { len: Len::Arg(n) } => {
                Reg::new(n).map_or(Extent::Unknown, Extent::Register)
            }
            Arg::Opaque => bytes.map_or(Extent::Unknown, Extent::Bytes),
            Arg::Vararg | Arg::CallbackCtx => Extent::Unknown,
        };
        Argument { register, class, extent, access, bits: 64 }
    }

    /// Whether the verifier lets any number pass for the address: the memory may be any, wherever a pointer that the number
    /// was computed from led (`ARG_ANYTHING` of helpers that probe or print).
    pub fn is_any_address(&self) -> bool {
        self.access.is_memory() && matches!(self.class, Arg::Probe { .. } | Arg::Vararg)
    }

    /// Whether it is the key of an element of a map, or a value for one: maps copy what they are given, or compare it with
    /// what they hold (the `map_lookup_elem`, `map_update_elem`, `map_delete_elem`, `map_push_elem` of `struct bpf_map_ops`
    /// in kernel/bpf/*map*.c), and keep no address.
    pub fn is_key_or_value(&self) -> bool {
        matches!(self.extent, Extent::Key | Extent::Value)
    }

    /// Whether it may be without a value: the verifier does not look at it.
    pub fn is_optional(&self) -> bool {
        self.class == Arg::Vararg
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::helpers::Helper;

    fn rows() -> impl Iterator<Item = &'static Helper> {
        (1..=crate::helpers::LAST).map(|i| Helper::get(i).unwrap_or_else(|| panic!("no row for {i}")))
    }

    fn row(name: &str) -> &'static Effects {
        &Helper::named(name).unwrap_or_else(|| panic!("no row for {name}")).effects
    }

    #[test]
    fn every_helper_has_a_row_that_says_what_happens_to_each_argument() {
        for h in rows() {
            assert_eq!(h.effects.arguments.len(), h.args.len(), "{}", h.name);
            assert!(h.effects.source.ends_with(".c"), "{} has no source", h.name);
            for (a, class) in h.effects.arguments.iter().zip(&h.args) {
                let plain = matches!(class, Arg::Map | Arg::Ctx | Arg::Size | Arg::Scalar | Arg::Func);
                assert_eq!(a.access.is_memory(), !plain, "{}: {a:?}", h.name);
                assert_eq!(a.extent == Extent::Nothing, plain, "{}: {a:?}", h.name);
                assert!(!a.access.copies || a.access.reads, "{} copies what it does not read", h.name);
                if a.access.writes == Writes::Nothing {
                    assert_eq!(a.access.on_failure, OnFailure::Untouched, "{}", h.name);
                }
            }
        }
    }

    #[test]
    fn what_the_verifier_lets_a_helper_read_or_write_is_in_its_row() {
        for h in rows() {
            for (a, class) in h.effects.arguments.iter().zip(&h.args) {
                if let Arg::Mem { read, write, .. } = class {
                    assert!(a.access.writes() == *write, "{}: {a:?}", h.name);
                    assert!(a.access.reads == *read, "{}: {a:?}", h.name);
                }
                if matches!(class, Arg::Key | Arg::Value | Arg::Probe { .. } | Arg::Vararg) {
                    assert!(a.access.reads && a.access.copies, "{}: {a:?}", h.name);
                }
            }
        }
    }

    #[test]
    fn at_most_forty_rows_touch_everything() {
        let all: Vec<&str> = rows().filter(|h| h.effects.touches_everything).map(|h| h.name).collect();
        println!("{} rows touch everything: {}", all.len(), all.join(", "));
        assert!(all.len() <= 40);
        assert!(rows().all(|h| h.effects.touches_everything || !h.effects.calls_back), "a callback may do anything");
    }

    #[test]
    fn calls_without_effect_leave_everything_alone() {
        for h in rows().filter(|h| h.effects.no_effect) {
            let e = &h.effects;
            assert!(!e.changes_context && !e.changes_maps && !e.writes_packet() && !e.touches_everything, "{}", h.name);
            assert!(e.arguments.iter().all(|a| !a.access.is_memory()), "{}", h.name);
            assert!(!e.ends_fresh && !e.writes_fresh && e.harmless, "{}", h.name);
        }
        assert!(rows().all(|h| h.effects.no_effect || !h.effects.constant));
        assert!(row("get_smp_processor_id").is_constant() && row("ktime_get_ns").may_be_left_out());
        // That a program has it counts (`call_get_func_ip`, `dst_needed`).
        assert!(!row("get_func_ip").may_be_left_out() && !row("get_route_realm").may_be_left_out());
    }

    #[test]
    fn a_helper_that_moves_the_packet_changes_the_context() {
        assert!(rows().all(|h| !h.effects.writes_packet() || h.effects.changes_context));
    }

    #[test]
    fn helpers_that_may_fail_without_writing_do_not_overwrite() {
        let may_leave_some =
            ["get_current_comm", "get_stack", "get_task_stack", "probe_read_kernel_str", "xdp_load_bytes"];
        for name in may_leave_some.into_iter().chain(["strtol", "get_func_arg"]) {
            assert!(row(name).arguments.iter().all(|a| !a.access.overwrites()), "{name}");
        }
        for name in ["probe_read_kernel", "skb_load_bytes", "get_ns_current_pid_tgid"] {
            assert!(row(name).arguments.iter().any(|a| a.access.overwrites()), "{name}");
        }
    }

    #[test]
    fn helpers_that_change_the_context_unseen_say_so() {
        for name in ["set_retval", "override_return", "skb_set_tstamp", "get_hash_recalc", "set_hash_invalid"] {
            assert!(row(name).changes_context, "{name}");
        }
        for name in ["map_update_elem", "perf_event_output", "get_retval", "redirect"] {
            assert!(!row(name).changes_context, "{name}");
        }
    }

    #[test]
    fn helpers_that_act_on_the_machine_are_not_harmless() {
        for name in [
            "probe_write_user",
            "override_return",
            "send_signal",
            "send_signal_thread",
            "clone_redirect",
            "trace_printk",
            "trace_vprintk",
            "sys_bpf",
            "sys_close",
            "tcp_send_ack",
            "task_storage_get",
            "sk_storage_get",
            "setsockopt",
            "tail_call",
            "timer_start",
        ] {
            assert!(!row(name).harmless, "{name}");
        }
    }

    #[test]
    fn few_helpers_only_change_a_map() {
        let found: Vec<&str> = rows().filter(|h| h.effects.only_changes_a_map()).map(|h| h.name).collect();
        assert_eq!(found, ["map_update_elem", "map_delete_elem", "map_push_elem", "map_pop_elem"]);
    }

    #[test]
    fn only_the_two_lookups_are_lookups() {
        let lookups: Vec<&str> = rows().filter(|h| h.effects.is_map_lookup()).map(|h| h.name).collect();
        assert_eq!(lookups, ["map_lookup_elem", "map_lookup_percpu_elem"]);
        let by_key: Vec<&str> = rows().filter(|h| h.effects.is_lookup_by_key()).map(|h| h.name).collect();
        assert_eq!(by_key, ["map_lookup_elem"]);
        assert!(rows().filter(|h| h.effects.is_tail_call()).map(|h| h.name).eq(["tail_call"]));
        assert!(rows().filter(|h| h.effects.result_is_a_slice()).map(|h| h.name).eq(["dynptr_data"]));
    }
}
