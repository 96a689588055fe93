//! What the table of helpers says about a call, and whether an observation agrees. The only file that knows the table.

use std::collections::BTreeSet;
use std::ops::Range;

use bpf_platform::effects::{Access, Extent, OnFailure, Writes};
use bpf_platform::helpers::Helper;

use crate::kinds::{Kind, Packet};
use crate::observe::Observation;
use crate::recipe::{Argument, Call};

/// One argument that points into the frame.
#[derive(Clone, Debug)]
pub struct Pointed {
    /// Which argument, from 1.
    pub argument: usize,
    /// Frame bytes, from the lowest.
    pub bytes: Range<usize>,
    /// What the table says happens to them.
    pub access: Access,
}

/// What a call may and must do to what a run can see.
#[derive(Clone, Debug, Default)]
pub struct Declared {
    /// Arguments that point into the frame.
    pub pointed: Vec<Pointed>,
    /// Everything may happen.
    pub everything: bool,
    /// Context fields may change.
    pub context: bool,
    /// Packet bytes may change.
    pub packet: bool,
    /// Packet pointers are void afterwards.
    pub moves: bool,
    /// Map contents may change.
    pub maps: bool,
    /// The result may differ from run to run.
    pub volatile: bool,
}

/// Reads the table; `None` if the helper has no row.
pub fn declared(call: &Call) -> Option<Declared> {
    let e = &Helper::get(call.helper)?.effects;
    let frame = call.frame as usize;
    let pointed = e.arguments.iter().zip(&call.arguments).enumerate().filter_map(|(i, (row, argument))| {
        let start = frame_index(argument, call)?;
        let length = match row.extent {
            Extent::Nothing => 0,
            Extent::Key | Extent::Value => buffer_length(argument),
            Extent::Bytes(n) => n as usize,
            Extent::Register(r) => match call.arguments.get(r.index() - 1) {
                Some(Argument::Number(n)) => usize::try_from(*n).unwrap_or(frame),
                // A length in a register: whatever the frame has.
                _ => frame,
            },
            Extent::Unknown => frame,
        };
        let bytes = start..start.saturating_add(length).min(frame);
        Some(Pointed { argument: i + 1, bytes, access: row.access })
    });
    Some(Declared {
        pointed: pointed.collect(),
        everything: e.touches_everything,
        context: e.changes_context || e.touches_everything,
        packet: e.writes_packet() || e.touches_everything,
        moves: e.moves_packet() || e.touches_everything,
        maps: e.changes_maps || e.touches_everything,
        volatile: e.volatile,
    })
}

impl Declared {
    fn written(&self, at: usize) -> Option<usize> {
        self.pointed.iter().find(|p| p.access.writes() && p.bytes.contains(&at)).map(|p| p.argument)
    }

    fn read(&self, at: usize) -> bool {
        self.everything || self.pointed.iter().any(|p| p.access.reads && p.bytes.contains(&at))
    }
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

/// The effects that a table row declares, as words: what ought to be observed sooner or later.
pub fn effects(d: &Declared) -> BTreeSet<String> {
    if d.everything {
        // A row that promises nothing has nothing to be seen.
        return BTreeSet::new();
    }
    let flags = [
        (d.context, "changes the context"),
        (d.packet, "writes the packet"),
        (d.moves, "moves the packet"),
        (d.maps, "changes maps"),
    ];
    let mut all: BTreeSet<String> = flags.iter().filter(|f| f.0).map(|f| f.1.to_owned()).collect();
    for p in d.pointed.iter().filter(|p| !p.bytes.is_empty()) {
        let words = [(p.access.writes(), "writes"), (p.access.copies, "copies")];
        all.extend(words.iter().filter(|w| w.0).map(|w| format!("{} argument {}", w.1, p.argument)));
    }
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
        failed(call, &d, o, &mut j);
        context(&d, kind, fields, o, &mut j);
        packet(&d, kind, o, &mut j);
        maps(&d, o, &mut j);
    }
    certain(call, &d, one, other, &mut j);
    if !call.unsteady {
        dependence(call, &d, fields, one, other, &mut j);
    }
    j.contradictions.sort();
    j.contradictions.dedup();
    j
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
        match d.written(at) {
            Some(i) => {
                j.seen.insert(format!("writes argument {i}"));
            }
            None if d.everything => {}
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
                j.seen.extend(["moves the packet".to_owned(), "changes the context".to_owned()]);
            } else {
                j.contradictions.push(format!("undeclared: the packet pointer at {at} of the context changed"));
            }
        } else if d.context {
            j.seen.insert("changes the context".to_owned());
        } else {
            let [before, after] = [o.context[0][i], o.context[1][i]];
            j.contradictions.push(format!("undeclared: context field {at} changed from {before:#x} to {after:#x}"));
        }
    }
    if o.context_out[0] != o.context_out[1] {
        if d.context {
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

/// What a failed call leaves in its buffers.
fn failed(call: &Call, d: &Declared, o: &Observation, j: &mut Judgement) {
    if !o.failed(&call.failure) || d.everything {
        return;
    }
    for p in d.pointed.iter().filter(|p| p.access.writes()) {
        let n = match p.access.on_failure {
            OnFailure::Partly => 0,
            OnFailure::Untouched => p.bytes.clone().filter(|i| o.frame[0][*i] != o.frame[1][*i]).count(),
            OnFailure::Zeroed => p.bytes.clone().filter(|i| o.frame[1][*i] != 0).count(),
        };
        if n > 0 {
            j.contradictions.push(format!(
                "declared {:?} on failure: {n} of {} bytes of argument {} are not (r0 {})",
                p.access.on_failure,
                p.bytes.len(),
                p.argument,
                o.result as i64
            ));
        }
    }
}

/// What a call that succeeds has certainly written: seen by the two fillings, of which no byte is the same.
fn certain(call: &Call, d: &Declared, one: &Observation, other: &Observation, j: &mut Judgement) {
    if [one, other].iter().any(|o| o.failed(&call.failure)) {
        return;
    }
    let changed: BTreeSet<usize> = one.changed_frame().into_iter().chain(other.changed_frame()).collect();
    // What a recipe prescribes may happen to be what is written; `setup` prescribes what a frame address leads to.
    let prescribed: BTreeSet<usize> = crate::observe::inputs(call).into_iter().map(|(at, _)| at).collect();
    let ours = |p: &&Pointed| !matches!(call.arguments[p.argument - 1], Argument::Frame(_));
    for p in d.pointed.iter().filter(|p| p.access.writes == Writes::All).filter(ours) {
        let untouched: Vec<usize> = p
            .bytes
            .clone()
            .filter(|at| !prescribed.contains(at) && !changed.contains(at))
            .map(|at| at - p.bytes.start)
            .collect();
        if let Some(first) = untouched.first() {
            let (n, all, r) = (untouched.len(), p.bytes.len(), one.result as i64);
            j.contradictions.push(format!(
                "declared certain, not seen: argument {}: {n} of {all} bytes not written, the first is {first} (r0 {r})",
                p.argument
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
    let prescribed: BTreeSet<usize> = crate::observe::inputs(call).into_iter().map(|(at, _)| at).collect();
    let arbitrary = |p: &Pointed| p.access.reads && p.bytes.clone().any(|at| !prescribed.contains(&at));
    if d.everything || d.pointed.iter().any(arbitrary) {
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

/// Prescribed frame bytes that the table does not say are read.
pub fn not_declared_read(call: &Call) -> Vec<usize> {
    let Some(d) = declared(call) else { return Vec::new() };
    crate::observe::inputs(call).into_iter().map(|(at, _)| at).filter(|at| !d.read(*at)).collect()
}

/// The prescribed bytes of each argument that the table says is read, and whether it says that they may come back.
pub fn declared_read(call: &Call) -> Vec<(usize, Vec<usize>, bool)> {
    let Some(d) = declared(call) else { return Vec::new() };
    let inputs: Vec<usize> = crate::observe::inputs(call).into_iter().map(|(at, _)| at).collect();
    let told = |at: &usize| d.pointed.iter().any(|p| p.access.copies && p.bytes.contains(at));
    d.pointed
        .iter()
        .filter(|p| p.access.reads)
        .map(|p| {
            let copies = p.access.copies || d.everything;
            // Buffers of a varied call may overlap: then another argument may tell these bytes.
            let bytes = inputs.iter().copied().filter(|at| p.bytes.contains(at) && (copies || !told(at)));
            (p.argument, bytes.collect::<Vec<_>>(), copies)
        })
        .filter(|(_, bytes, _)| !bytes.is_empty())
        .collect()
}

/// Must packet pointers be taken for void after this call?
pub fn moves_packet(call: &Call) -> bool {
    declared(call).is_none_or(|d| d.moves)
}

/// May the same call give another result in another run?
pub fn volatile(call: &Call) -> bool {
    declared(call).is_none_or(|d| d.volatile || d.everything)
}
