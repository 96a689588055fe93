//! The table of BPF helpers: what the verifier wants of their arguments, and what their bodies do.
//!
//! `helpers.tsv` is generated from the kernel's uapi header by `gen/helpers.py` (which names its sources); this module
//! parses it once. Adding a helper is adding a row. A row that cannot be read is no row, and a helper without a row is
//! unknown: [`Effects::of`] then says that it touches everything it could reach.

use std::collections::HashMap;
use std::sync::LazyLock;

use bpf_isa::{Call, Insn, Reg};

use crate::effects::{Access, Argument, Effects, Packet, ResultRange};
use crate::version::KernelVersion;

pub use crate::prototype::{Arg, Len, Ret};

/// One row of the table.
#[derive(Clone, Debug)]
pub struct Helper {
    /// Number in the `call` instruction.
    pub id: i32,
    /// Name without the `bpf_` prefix.
    pub name: &'static str,
    /// What r0 holds afterwards.
    pub ret: Ret,
    /// The arguments in order, r1 first.
    pub args: Vec<Arg>,
    /// What a call of it may do.
    pub effects: Effects,
    /// The first release of the kernel that has it.
    pub since: KernelVersion,
}

impl Helper {
    /// The helper with this number, if the table has it.
    pub fn get(id: i32) -> Option<&'static Helper> {
        TABLE.get(&id)
    }

    /// The helper of that name, without the `bpf_` prefix.
    pub fn named(name: &str) -> Option<&'static Helper> {
        TABLE.values().find(|h| h.name == name)
    }
}

impl Effects {
    /// The effects of a call; `linked` if the loader patches it, so that its number does not mean what it says.
    /// Anything that is no call of a helper with a row is [`Effects::unknown`].
    pub fn of(insn: &Insn, linked: bool) -> &'static Effects {
        Effects::helper(insn, linked).map_or(Effects::unknown(), |h| &h.effects)
    }

    /// The row of a call, if it has one.
    pub fn helper(insn: &Insn, linked: bool) -> Option<&'static Helper> {
        match insn {
            Insn::Call(Call::Helper(id)) if !linked => Helper::get(*id),
            _ => None,
        }
    }
}

/// `bpf_map_lookup_elem`. For interpreters of single helpers; all others ask [`Effects::is_map_lookup`].
pub const MAP_LOOKUP: i32 = 1;
/// The number of the last helper: uapi is frozen, kernel functions took over.
pub const LAST: i32 = 211;

static TABLE: LazyLock<HashMap<i32, Helper>> =
    LazyLock::new(|| include_str!("helpers.tsv").lines().filter_map(parse_row).map(|h| (h.id, h)).collect());

/// Helpers by whose mere presence the verifier marks a program, so that the kernel treats it otherwise wherever it runs:
/// `cb_access` and `dst_needed` (the device keeps routes), `kprobe_override`, buffers for call chains, the address of the
/// traced function (`check_helper_call` and `do_misc_fixups` in kernel/bpf/verifier.c).
const MARKING: [&str; 7] =
    ["tail_call", "get_route_realm", "override_return", "get_stackid", "get_stack", "get_task_stack", "get_func_ip"];

/// Bits of parameter `i` of a C prototype.
fn declared_bits(prototype: &str, i: usize) -> u32 {
    let parameters = prototype.split_once('(').map_or("", |(_, p)| p);
    match parameters.split(',').nth(i).map(str::trim) {
        Some(p) if p.contains('*') => 64,
        Some(p) => match p.split(' ').next() {
            Some("int" | "s32" | "u32" | "__wsum") => 32,
            Some("u16" | "__be16") => 16,
            _ => 64,
        },
        None => 64,
    }
}

fn parse_row(line: &'static str) -> Option<Helper> {
    if line.starts_with('#') {
        return None;
    }
    let mut col = line.split('\t');
    let id = col.next()?.parse().ok()?;
    let name = col.next()?;
    let ret = parse_ret(col.next()?)?;
    let list = |text: &'static str| text.split(';').filter(|t| !t.is_empty()).collect::<Vec<_>>();
    let (classes, access) = (list(col.next()?), list(col.next()?));
    let flags: Vec<&str> = col.next()?.split(' ').collect();
    let source = col.next()?;
    let since = col.next()?.parse().ok()?;
    let prototype = col.next()?;
    let result_range = match prototype.split(' ').next()? {
        "u32" => ResultRange::U32,
        "long" if ret == Ret::Scalar => ResultRange::Int,
        _ => ResultRange::Any,
    };
    if classes.len() != access.len() {
        return None;
    }
    let args: Vec<Arg> = classes.iter().map(|c| parse_arg(c)).collect();
    let argument = |(i, (class, text)): (usize, (&&str, &&str))| {
        let argument = Argument::new(Reg::new(i as u8 + 1)?, args[i], opaque_bytes(class), Access::parse(text)?);
        Some(Argument { bits: declared_bits(prototype, i), ..argument })
    };
    let arguments = classes.iter().zip(&access).enumerate().map(argument).collect::<Option<Vec<_>>>()?;
    let flag = |f: &str| flags.contains(&f);
    let packet = match (flag("moves_packet"), flag("writes_packet")) {
        (true, _) => Packet::Moved,
        (false, true) => Packet::Written,
        (false, false) => Packet::Untouched,
    };
    let effects = Effects {
        name,
        marks_program: MARKING.contains(&name),
        result: ret,
        result_range,
        arguments,
        packet,
        changes_context: !flag("context_same"),
        changes_maps: flag("map_write"),
        writes_fresh: flag("fresh_writes"),
        ends_fresh: flag("fresh_ends"),
        indirect: flag("indirect"),
        calls_back: flag("calls_back"),
        touches_everything: flag("everything"),
        no_effect: flag("pure_read"),
        constant: flag("constant"),
        volatile: flag("volatile"),
        harmless: flag("harmless"),
        source,
    };
    Some(Helper { id, name, ret, args, effects, since })
}

/// The length of an opaque argument, if the table gives one.
fn opaque_bytes(class: &str) -> Option<u32> {
    class.strip_prefix("opaque:")?.split(':').next()?.parse().ok()
}

fn parse_ret(s: &str) -> Option<Ret> {
    Some(match s {
        "scalar" => Ret::Scalar,
        "void" => Ret::Void,
        "map_value_or_null" => Ret::MapValueOrNull,
        "mem_or_null" => Ret::MemOrNull,
        "sock_or_null" => Ret::SockOrNull,
        "ptr" => Ret::Ptr,
        "slice" => Ret::Slice,
        "noreturn_on_success" => Ret::NoReturnOnSuccess,
        _ => return None,
    })
}

/// An argument class this parser does not know is opaque: the safe reading.
fn parse_arg(s: &str) -> Arg {
    let mut part = s.split(':');
    let class = part.next().unwrap_or("");
    let number = part.next().and_then(|n| n.parse::<u32>().ok());
    let by_arg = number.map(|n| Len::Arg(n as u8));
    let fixed = number.map(Len::Bytes);
    let mem = |len: Option<Len>, read, write| match len {
        Some(len) => Arg::Mem { len, read, write },
        None => Arg::Opaque,
    };
    match class {
        "map" => Arg::Map,
        "key" => Arg::Key,
        "value" => Arg::Value,
        "outvalue" => Arg::OutValue,
        "ctx" => Arg::Ctx,
        "mem_r" => mem(by_arg, true, false),
        "mem_w" => mem(by_arg, false, true),
        "mem_rw" => mem(by_arg, true, true),
        "fixed_r" => mem(fixed, true, false),
        "fixed_w" => mem(fixed, false, true),
        "fixed_rw" => mem(fixed, true, true),
        "probe_r" => by_arg.map_or(Arg::Opaque, |len| Arg::Probe { len }),
        "size" => Arg::Size,
        "scalar" | "flags" => Arg::Scalar,
        "vararg" => Arg::Vararg,
        "func" => Arg::Func,
        "cbctx" => Arg::CallbackCtx,
        _ => Arg::Opaque,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_helper_of_the_header_has_a_row() {
        assert_eq!((1..=LAST).filter(|i| Helper::get(*i).is_none()).collect::<Vec<_>>(), Vec::<i32>::new());
    }

    #[test]
    fn numbers_are_given_in_the_order_of_releases() {
        let since: Vec<KernelVersion> = (1..=LAST).filter_map(|id| Some(Helper::get(id)?.since)).collect();
        assert!(since.is_sorted());
        // From the headers of these releases: the last helper of Linux 4.14, 5.4, 5.10, 5.15 and 6.1, and the one after it.
        for (last, release) in [(53, "4.14"), (110, "5.4"), (155, "5.10"), (175, "5.15"), (209, "6.1")] {
            let release: KernelVersion = release.parse().unwrap();
            let of = |id| Helper::get(id).unwrap().since;
            assert!(of(last) <= release && of(last + 1) > release, "{last}");
        }
    }

    #[test]
    fn map_update_reads_key_and_value() {
        let h = Helper::get(2).unwrap();
        assert_eq!(h.args, [Arg::Map, Arg::Key, Arg::Value, Arg::Scalar]);
        assert!(h.effects.changes_maps && !h.effects.no_effect);
    }

    #[test]
    fn skb_load_bytes_overwrites_its_buffer() {
        let h = Helper::get(26).unwrap();
        assert_eq!(h.args[2], Arg::Mem { len: Len::Arg(4), read: false, write: true });
        assert!(h.effects.arguments[2].access.overwrites());
    }

    #[test]
    fn a_call_without_a_row_touches_everything() {
        let kfunc = Insn::Call(Call::Kfunc { btf_id: 1, off: 0 });
        for (insn, linked) in [
            (kfunc, false),
            (kfunc, true),
            (Insn::Call(Call::Helper(1 << 20)), false),
            (Insn::Call(Call::Helper(1)), true),
            (Insn::Call(Call::Local(1)), true),
            (Insn::CallX { reg: Reg::R1 }, false),
        ] {
            let e = Effects::of(&insn, linked);
            assert!(e.touches_everything && e.changes_context && e.moves_packet() && !e.harmless && !e.no_effect);
            assert!(e.arguments.len() == 5 && e.arguments.iter().all(|a| a.access == Access::ANYTHING));
        }
    }
}
