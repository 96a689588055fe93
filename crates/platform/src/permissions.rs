//! What the verifier permits programs of a type: which context fields they access and how, which helpers they call, which
//! numbers they return.
//!
//! Context fields and helpers are the kernel's own answers, asked of it once by `examples/probe.rs` of `bpf-check`. Types
//! of programs and of attachment are numbers of `enum bpf_prog_type` and `enum bpf_attach_type`.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::version::KernelVersion;

/// What a load from the context gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    /// A number.
    Scalar,
    /// The packet's start.
    Packet,
    /// The metadata's start.
    PacketMeta,
    /// The packet's end.
    PacketEnd,
    /// A socket or null.
    SockCommon {
        /// May be null.
        or_null: bool,
    },
    /// A full socket or null.
    Sock {
        /// May be null.
        or_null: bool,
    },
    /// The flow dissector's keys.
    FlowKeys,
    /// Another kernel object.
    Opaque,
}

/// Inclusive ranges of numbers.
type Ranges = Vec<(u32, u32)>;

fn ranges(text: &str) -> Ranges {
    text.split(',')
        .filter_map(|r| {
            let (a, b) = r.split_once('-').unwrap_or((r, r));
            Some((a.parse().ok()?, b.parse().ok()?))
        })
        .collect()
}

fn holds(ranges: &Ranges, n: u32) -> bool {
    ranges.iter().any(|(a, b)| (*a..=*b).contains(&n))
}

/// (program type, attach type, store?, bytes).
type Access = (u32, u32, bool, u32);

static CONTEXT: LazyLock<HashMap<Access, Vec<(Field, Ranges)>>> = LazyLock::new(|| {
    let mut table: HashMap<Access, Vec<(Field, Ranges)>> = HashMap::new();
    for line in include_str!("permissions/context.tsv").lines().filter(|l| !l.starts_with('#')) {
        let col: Vec<&str> = line.split('\t').collect();
        let &[kind, attach, rw, bytes, what, offsets] = &col[..] else { continue };
        let number = |s: &str| s.parse().unwrap_or(0);
        let field = match what {
            "scalar" | "-" => Field::Scalar,
            "pkt" => Field::Packet,
            "pkt_meta" => Field::PacketMeta,
            "pkt_end" => Field::PacketEnd,
            "sock_common_or_null" => Field::SockCommon { or_null: true },
            "sock_common" => Field::SockCommon { or_null: false },
            "sock_or_null" => Field::Sock { or_null: true },
            "sock" => Field::Sock { or_null: false },
            "flow_keys" => Field::FlowKeys,
            _ => Field::Opaque,
        };
        let key = (number(kind), number(attach), rw == "w", number(bytes));
        table.entry(key).or_default().push((field, ranges(offsets)));
    }
    table
});

/// Tracepoint contexts reach to `PERF_MAX_TRACE_SIZE`.
const TRACE_SIZE: i64 = 8192;
/// Contexts of `BPF_PROG_TYPE_SYSCALL` are as long as the caller makes them.
const SYSCALL_SIZE: i64 = 65535;

/// What an access of the context gives; `None` if it is not allowed.
pub fn context(kind: u32, attach: u32, write: bool, off: i64, bytes: u32) -> Option<Field> {
    if off < 0 {
        return None;
    }
    let end = off + i64::from(bytes);
    let aligned = off % i64::from(bytes) == 0;
    match kind {
        5 => return (!write && off >= 8 && end <= TRACE_SIZE && aligned).then_some(Field::Scalar),
        31 => return (end <= SYSCALL_SIZE).then_some(Field::Scalar),
        _ => {}
    }
    let off = u32::try_from(off).ok()?;
    let key = (kind, known_attach(kind, attach), write, bytes);
    CONTEXT.get(&key)?.iter().find(|(_, r)| holds(r, off)).filter(|_| aligned).map(|(field, _)| *field)
}

/// All and GPL-only helpers of a program type.
type Allowed = (Ranges, Ranges);

static HELPERS: LazyLock<HashMap<(u32, u32), Allowed>> = LazyLock::new(|| {
    include_str!("permissions/helpers.tsv")
        .lines()
        .filter(|l| !l.starts_with('#'))
        .filter_map(|line| {
            let mut col = line.split('\t');
            let key = (col.next()?.parse().ok()?, col.next()?.parse().ok()?);
            Some((key, (ranges(col.next()?), ranges(col.next().unwrap_or("")))))
        })
        .collect()
});

/// The attach type the tables have for a program type: the one given, or the first.
fn known_attach(kind: u32, attach: u32) -> u32 {
    if HELPERS.contains_key(&(kind, attach)) {
        return attach;
    }
    HELPERS.keys().filter(|k| k.0 == kind).map(|k| k.1).min().unwrap_or(attach)
}

/// Is anything known of this program type?
pub fn knows(kind: u32) -> bool {
    HELPERS.keys().any(|k| k.0 == kind)
}

/// Why a program may not call a helper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forbidden {
    /// Not for this program type.
    Type,
    /// The licence is not compatible with the GPL.
    License,
}

/// May programs of this type and licence call this helper?
pub fn may_call(kind: u32, attach: u32, id: i32, gpl: bool) -> Result<(), Forbidden> {
    let Some((all, restricted)) = HELPERS.get(&(kind, known_attach(kind, attach))) else { return Ok(()) };
    let id = u32::try_from(id).unwrap_or(u32::MAX);
    if !holds(all, id) {
        return Err(Forbidden::Type);
    }
    if !gpl && holds(restricted, id) {
        return Err(Forbidden::License);
    }
    Ok(())
}

/// Releases whose kernels were asked which helpers each program type may call, ascending; the last is that of `helpers.tsv`.
const ASKED: [KernelVersion; 3] = [
    KernelVersion { major: 6, minor: 1 },
    KernelVersion { major: 6, minor: 12 },
    KernelVersion { major: 6, minor: 18 },
];

static LATER: LazyLock<HashMap<(u32, u32), Vec<Ranges>>> = LazyLock::new(|| {
    include_str!("permissions/later.tsv")
        .lines()
        .filter(|l| !l.starts_with('#'))
        .filter_map(|line| {
            let mut col = line.split('\t');
            let key = (col.next()?.parse().ok()?, col.next()?.parse().ok()?);
            Some((key, col.map(ranges).collect()))
        })
        .collect()
});

/// Between which releases programs of this type were let call this helper: the last that does not let them, and the first that
/// does, of those that were asked. `None` if all of them do, or nothing is known.
pub fn let_call_between(kind: u32, attach: u32, id: i32) -> Option<(KernelVersion, KernelVersion)> {
    let id = u32::try_from(id).ok()?;
    let row = LATER.get(&(kind, attach));
    let row = row.or_else(|| LATER.iter().filter(|(k, _)| k.0 == kind).min_by_key(|(k, _)| k.1).map(|(_, row)| row))?;
    let last = row.iter().rposition(|ranges| holds(ranges, id))?;
    Some((*ASKED.get(last)?, *ASKED.get(last + 1)?))
}

/// The numbers a program of this type may return, where the kernel cares.
pub fn return_range(kind: u32, attach: u32) -> Option<(i64, i64)> {
    match (kind, attach) {
        // Generic cgroup hooks: allow or deny; egress also says congestion; bind may skip a check of rights.
        (8, 1) | (18, 8 | 9) => Some((0, 3)),
        // The kernel ignores a refusal here, so programs must not pretend one.
        (18, 19 | 20 | 29 | 30 | 31 | 32 | 51 | 52) => Some((1, 1)),
        (8 | 9 | 13 | 15 | 18 | 23 | 25 | 30 | 32, _) => Some((0, 1)),
        _ => None,
    }
}

/// May programs of this type access packet data directly, and write it?
pub fn packet_access(kind: u32, write: bool) -> bool {
    match kind {
        // lwt_in, lwt_out, lwt_seg6local, sk_reuseport, flow_dissector, cgroup_skb: reading only.
        8 | 10 | 11 | 19 | 21 | 22 => !write,
        3 | 4 | 6 | 12 | 14 | 16 | 25 => true,
        _ => false,
    }
}

/// Offset, width and whether a load of an access of `struct bpf_sock` is allowed (`bpf_sock_is_valid_access`).
pub fn sock_field(off: i64, bytes: u32, common: bool) -> bool {
    let size = i64::from(bytes);
    if off < 0 || off + size > 80 || off % size != 0 {
        return false;
    }
    // Fields that `struct sock_common` does not have: type, protocol, mark, priority.
    if common && (8..24).contains(&off) {
        return false;
    }
    match off {
        // dst_port has two bytes, and four for old programs.
        48..=51 => matches!((off, bytes), (48, 4) | (48, 2) | (48 | 49, 1)),
        0..=3 | 16..=23 | 76..=79 => bytes == 4,
        _ => bytes <= 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_older_kernels_are_read_and_forbid_what_the_newest_allows() {
        let lines = include_str!("permissions/later.tsv").lines().filter(|l| !l.starts_with('#')).count();
        assert_eq!(LATER.len(), lines);
        for ((kind, attach), row) in LATER.iter() {
            assert_eq!(row.len() + 1, ASKED.len(), "{kind} {attach}");
            let ids = row.iter().flatten().flat_map(|(first, last)| *first..=*last);
            for id in ids {
                assert_eq!(may_call(*kind, *attach, id as i32, true), Ok(()), "{kind} {attach} {id}");
            }
        }
    }

    #[test]
    fn releases_between_those_asked_are_told_apart() {
        let v = |text: &str| text.parse().expect("a version");
        // XDP: bpf_get_current_uid_gid behind 6.12; tc: bpf_get_current_pid_tgid behind 6.1.
        assert_eq!(let_call_between(6, 37, 15), Some((v("6.12"), v("6.18"))));
        assert_eq!(let_call_between(3, 0, 14), Some((v("6.1"), v("6.12"))));
        assert_eq!(let_call_between(2, 0, 15), None);
        assert_eq!(let_call_between(6, 37, 1), None);
    }
}
