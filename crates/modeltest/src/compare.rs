//! What the table of helpers says about a call, and whether an observation agrees. The only file that knows the table.

use std::collections::BTreeSet;
use std::ops::Range;

use bpf_platform::helpers::{Arg, Helper, Len};

use crate::kinds::{Kind, Packet};
use crate::observe::Observation;
use crate::recipe::{Argument, Call};

/// What a call may and must do to what a run can see. Ranges are frame bytes, from the lowest.
#[derive(Clone, Debug, Default)]
pub struct Declared {
    /// Argument (from 1) and the bytes it may write.
    pub writes: Vec<(usize, Range<usize>)>,
    /// Argument and bytes that it writes whatever happens.
    pub certain: Vec<(usize, Range<usize>)>,
    /// Argument and bytes that the result may depend on.
    pub reads: Vec<(usize, Range<usize>)>,
    /// Context fields may change.
    pub context: bool,
    /// Packet bytes may change.
    pub packet: bool,
    /// Packet pointers are void afterwards.
    pub moves: bool,
    /// Map contents may change.
    pub maps: bool,
}

/// Reads the table; `None` if the helper has no row.
pub fn declared(call: &Call) -> Option<Declared> {
    let row = Helper::get(call.helper)?;
    let takes_context = row.args.contains(&Arg::Ctx);
    let mut d = Declared {
        context: takes_context && !row.pure_read,
        packet: row.writes_packet,
        moves: row.moves_packet,
        maps: row.map_write || row.calls_back,
        ..Declared::default()
    };
    for (i, class) in row.args.iter().enumerate() {
        let Some(start) = call.arguments.get(i).and_then(|a| frame_index(a, call)) else { continue };
        let frame = call.frame as usize;
        let (length, read, write) = match *class {
            Arg::Mem { len, read, write } => (length(len, call), read, write),
            Arg::Probe { len } => (length(len, call), true, false),
            Arg::Key | Arg::Value => (buffer_length(&call.arguments[i]), true, false),
            // Bloom filters read what other maps write.
            Arg::OutValue => (buffer_length(&call.arguments[i]), true, true),
            Arg::Vararg => (frame - start, true, false),
            // The kernel object behind an opaque argument may hold the frame's address: it may do everything to the frame.
            Arg::Opaque | Arg::CallbackCtx => {
                d.reads.push((i + 1, 0..frame));
                d.writes.push((i + 1, 0..frame));
                continue;
            }
            Arg::Map | Arg::Ctx | Arg::Size | Arg::Scalar | Arg::Func => continue,
        };
        let range = start..(start + length).min(frame);
        if read {
            d.reads.push((i + 1, range.clone()));
        }
        if write {
            d.writes.push((i + 1, range.clone()));
            if row.overwrites {
                d.certain.push((i + 1, range));
            }
        }
    }
    Some(d)
}

fn frame_index(argument: &Argument, call: &Call) -> Option<usize> {
    match argument {
        Argument::Buffer { offset, .. } | Argument::Frame(offset) => Some((offset + call.frame as i32) as usize),
        _ => None,
    }
}

fn buffer_length(argument: &Argument) -> usize {
    match argument {
        Argument::Buffer { length, .. } => *length as usize,
        _ => 8,
    }
}

fn length(len: Len, call: &Call) -> usize {
    match len {
        Len::Bytes(n) => n as usize,
        Len::Arg(n) => match call.arguments.get(n as usize - 1) {
            Some(Argument::Number(n)) => usize::try_from(*n).unwrap_or(usize::MAX / 2),
            // A length in a register: whatever the frame has.
            _ => call.frame as usize,
        },
    }
}

/// The effects that a table row declares, as words: what ought to be observed sooner or later.
pub fn effects(d: &Declared) -> BTreeSet<String> {
    let arguments = |what: &str, list: &[(usize, Range<usize>)]| -> Vec<String> {
        list.iter().filter(|(_, r)| !r.is_empty()).map(|(i, _)| format!("{what} argument {i}")).collect()
    };
    let flags = [
        (d.context, "changes the context"),
        (d.packet, "writes the packet"),
        (d.moves, "moves the packet"),
        (d.maps, "changes maps"),
    ];
    let mut all: BTreeSet<String> = flags.iter().filter(|f| f.0).map(|f| f.1.to_owned()).collect();
    all.extend(arguments("writes", &d.writes));
    all.extend(arguments("reads", &d.reads));
    all
}

/// What the observations of one call (twice with one filling, once with the other) show.
#[derive(Debug, Default)]
pub struct Judgement {
    /// Undeclared effects, and certain ones that did not happen.
    pub contradictions: Vec<String>,
    /// Declared effects that were seen.
    pub seen: BTreeSet<String>,
}

/// Compares. `other` has the complementary filling.
pub fn judge(
    call: &Call,
    kind: &Kind,
    fields: &[crate::fields::Field],
    one: &Observation,
    other: &Observation,
) -> Judgement {
    let mut j = Judgement::default();
    let Some(d) = declared(call) else { return j };
    registers(call, one, &mut j);
    for o in [one, other] {
        frame(call, &d, o, &mut j);
        context(&d, kind, fields, o, &mut j);
        packet(&d, kind, o, &mut j);
        maps(&d, o, &mut j);
    }
    certain(&d, one, other, &mut j);
    if !call.unsteady {
        dependence(call, &d, fields, one, other, &mut j);
    }
    j.contradictions.sort();
    j.contradictions.dedup();
    j
}

fn within(ranges: &[(usize, Range<usize>)], at: usize) -> Option<usize> {
    ranges.iter().find(|(_, r)| r.contains(&at)).map(|(i, _)| *i)
}

fn registers(call: &Call, o: &Observation, j: &mut Judgement) {
    for r in 6..=10u8 {
        let i = r as usize - 6;
        if !call.taken.contains(&r) && o.registers[0][i] != o.registers[1][i] {
            j.contradictions.push(format!("r{r} changed"));
        }
    }
}

fn frame(call: &Call, d: &Declared, o: &Observation, j: &mut Judgement) {
    for at in o.changed_frame() {
        match within(&d.writes, at) {
            Some(i) => {
                j.seen.insert(format!("writes argument {i}"));
            }
            None => {
                let place = at as i32 - call.frame as i32;
                j.contradictions.push(format!("undeclared: frame byte {place} changed{}", owner(call, place)));
            }
        }
    }
}

/// Which argument's buffer a frame byte belongs to.
fn owner(call: &Call, place: i32) -> String {
    let found = call.arguments.iter().enumerate().find_map(|(i, a)| match a {
        Argument::Buffer { offset, length, .. } if (*offset..*offset + *length as i32).contains(&place) => {
            Some(format!(" (argument {}, byte {})", i + 1, place - offset))
        }
        _ => None,
    });
    found.unwrap_or_default()
}

/// Is this field one of the packet pointers?
fn is_packet_pointer(kind: &Kind, field: &crate::fields::Field) -> bool {
    field.pointer
        && match kind.packet {
            Packet::Direct { data, end } => {
                [data, end].contains(&field.offset) || (kind.is_skb() && field.offset == 140) || !kind.is_skb()
            }
            Packet::No => false,
        }
}

fn context(d: &Declared, kind: &Kind, fields: &[crate::fields::Field], o: &Observation, j: &mut Judgement) {
    for (i, field) in fields.iter().enumerate().take(o.context[0].len()) {
        if o.context[0][i] == o.context[1][i] {
            continue;
        }
        let at = field.offset;
        if is_packet_pointer(kind, field) {
            if d.moves {
                j.seen.insert("moves the packet".to_owned());
            } else {
                j.contradictions.push(format!("undeclared: the packet pointer at {at} of the context changed"));
            }
        } else if d.context || d.moves {
            j.seen.insert("changes the context".to_owned());
        } else {
            let [before, after] = [o.context[0][i], o.context[1][i]];
            j.contradictions.push(format!("undeclared: context field {at} changed from {before:#x} to {after:#x}"));
        }
    }
    if o.context_out[0] != o.context_out[1] {
        if d.context || d.moves {
            j.seen.insert("changes the context".to_owned());
        } else {
            j.contradictions.push("undeclared: the context the run gives back changed".to_owned());
        }
    }
}

fn packet(d: &Declared, kind: &Kind, o: &Observation, j: &mut Judgement) {
    if o.packet[0] == o.packet[1] {
        return;
    }
    if d.packet {
        j.seen.insert("writes the packet".to_owned());
    } else {
        let [before, after] = [o.packet[0].len(), o.packet[1].len()];
        let what = format!("undeclared: the packet changed ({before} to {after} bytes, {})", kind.name);
        j.contradictions.push(what);
    }
}

fn maps(d: &Declared, o: &Observation, j: &mut Judgement) {
    for (name, after) in &o.maps[1] {
        // A map that only the call names does not exist without it.
        let Some(before) = o.maps[0].get(name) else { continue };
        if before == after {
            continue;
        }
        if d.maps && name != "bystander" {
            j.seen.insert("changes maps".to_owned());
        } else {
            j.contradictions.push(format!("undeclared: map {name} changed"));
        }
    }
}

fn certain(d: &Declared, one: &Observation, other: &Observation, j: &mut Judgement) {
    let changed: BTreeSet<usize> = one.changed_frame().into_iter().chain(other.changed_frame()).collect();
    for (argument, range) in &d.certain {
        let untouched: Vec<usize> =
            range.clone().filter(|at| !changed.contains(at)).map(|at| at - range.start).collect();
        if let Some(first) = untouched.first() {
            let (n, all, r) = (untouched.len(), range.len(), one.result as i64);
            j.contradictions.push(format!(
                "declared certain, not seen: argument {argument}: {n} of {all} bytes not written, the first is {first} (r0 {r})"
            ));
        }
    }
}

/// With everything but the prescribed bytes different, all that the call did must be the same.
fn dependence(
    call: &Call,
    d: &Declared,
    fields: &[crate::fields::Field],
    one: &Observation,
    other: &Observation,
    j: &mut Judgement,
) {
    let arbitrary =
        |argument: &Argument| matches!(argument, Argument::Buffer { content: None, .. } | Argument::Frame(_));
    let reads_arbitrary = call
        .arguments
        .iter()
        .enumerate()
        .any(|(i, a)| arbitrary(a) && d.reads.iter().any(|(n, r)| *n == i + 1 && !r.is_empty()));
    if reads_arbitrary {
        return;
    }
    let mut differ = Vec::new();
    if one.steady_result(&call.failure) != other.steady_result(&call.failure) {
        differ.push(format!("r0 ({:#x}, {:#x})", one.result, other.result));
    }
    let written: BTreeSet<usize> = one.changed_frame().into_iter().chain(other.changed_frame()).collect();
    if let Some(at) = written.iter().find(|at| one.frame[1][**at] != other.frame[1][**at]) {
        let place = *at as i32 - call.frame as i32;
        differ.push(format!("what is written to frame byte {place}{}", owner(call, place)));
    }
    if one.packet[1] != other.packet[1] && one.packet[0] == other.packet[0] {
        differ.push("the packet".to_owned());
    }
    if one.maps[1] != other.maps[1] && one.maps[0] == other.maps[0] {
        differ.push("a map".to_owned());
    }
    let numbers = |o: &Observation| -> Vec<u64> {
        fields.iter().zip(&o.context[1]).filter(|(f, _)| !f.pointer).map(|(_, v)| *v).collect()
    };
    if numbers(one) != numbers(other) && one.context[0] == other.context[0] {
        differ.push("the context".to_owned());
    }
    if !differ.is_empty() {
        j.contradictions.push(format!("undeclared read: frame bytes nobody prescribes decide {}", differ.join(", ")));
    }
}

/// Prescribed bytes (frame index, with their argument) that the table does not say are read.
pub fn not_declared_read(call: &Call) -> Vec<usize> {
    let Some(d) = declared(call) else { return Vec::new() };
    crate::observe::inputs(call).into_iter().map(|(at, _)| at).filter(|at| within(&d.reads, *at).is_none()).collect()
}

/// A few prescribed bytes of each argument that the table says is read.
pub fn declared_read(call: &Call) -> Vec<(usize, Vec<usize>)> {
    let Some(d) = declared(call) else { return Vec::new() };
    let inputs: Vec<usize> = crate::observe::inputs(call).into_iter().map(|(at, _)| at).collect();
    d.reads
        .iter()
        .map(|(i, r)| (*i, inputs.iter().copied().filter(|at| r.contains(at)).collect::<Vec<_>>()))
        .filter(|(_, bytes)| !bytes.is_empty())
        .collect()
}

/// Must packet pointers be taken for void after this call?
pub fn moves_packet(call: &Call) -> bool {
    declared(call).is_none_or(|d| d.moves)
}
