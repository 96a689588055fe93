//! What the kernel keeps of a program besides its code.
//!
//! The verifier notes what it has seen in a program (`cb` was accessed, the packet may move, it may sleep, a static function
//! is called with something else than its type says …), and other parts of the kernel act on that: they clear fields
//! before a run, or refuse to attach. Two programs that do the same may leave different notes. User space is told none of
//! them, so a test run of a program that reads kernel memory looks into `struct bpf_prog`, whose layout is in the kernel's
//! own BTF. Where that cannot be (no BTF, a locked-down kernel), nothing is known of any program.
//!
//! Promise: memory is read only; where a descriptor is reused meanwhile, so that another program is read, there are no
//! marks: the program found must have the number that the kernel gives for this one.

use std::{
    collections::BTreeSet,
    hash::{DefaultHasher, Hash, Hasher},
    os::fd::{AsRawFd, BorrowedFd},
    sync::{Mutex, OnceLock, PoisonError},
};

use bpf_platform::helpers::Helper;

use crate::{
    Map, ProgramType, RawOptions, RawProgram,
    sys::{Member, Types},
};

/// Where a note is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holder {
    /// `struct bpf_prog` in linux/bpf.h.
    Program,
    /// `struct bpf_prog_aux`.
    Aux,
}

/// How the note on a program must be to that on another whose place it takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Relation {
    Same,
    /// It says how much of something the program needs.
    AtMost,
    /// The same, of a pointer of which counts whether it is null.
    Null,
    /// The same, of programs that ask for a stack of their own: those are the ones that are not run inside of themselves
    /// if they have one (`bpf_prog_check_recur` in linux/bpf_verifier.h). Programs of other types are not anyway, or are.
    IfRequested,
}

use Holder::{Aux, Program};
use Relation::{AtMost, IfRequested, Null, Same};

/// The notes that anybody outside of the verifier acts on. Left out is what cannot be seen from outside and follows from
/// the length of the code (`pages`, `size_poke_tab`), or from where a
/// program stands (`id`, `user`).
const NOTES: [(Holder, &str, Relation); 34] = [
    (Program, "gpl_compatible", Same),
    (Program, "cb_access", Same),
    (Program, "dst_needed", Same),
    (Program, "kprobe_override", Same),
    (Program, "has_callchain_buf", Same),
    (Program, "enforce_expected_attach_type", Same),
    (Program, "call_get_stack", Same),
    (Program, "call_get_func_ip", Same),
    (Program, "tstamp_type_access", Same),
    (Program, "sleepable", Same),
    (Program, "type", Same),
    (Program, "expected_attach_type", Same),
    (Aux, "max_ctx_offset", AtMost),
    (Aux, "max_tp_access", AtMost),
    (Aux, "max_rdonly_access", AtMost),
    (Aux, "max_rdwr_access", AtMost),
    (Aux, "attach_btf_id", Same),
    (Aux, "attach_st_ops_member_off", Same),
    (Aux, "used_btf_cnt", Same),
    (Aux, "dev_bound", Same),
    (Aux, "attach_btf_trace", Same),
    (Aux, "attach_tracing_prog", Same),
    (Aux, "func_proto_unreliable", Same),
    (Aux, "xdp_has_frags", Same),
    (Aux, "exception_cb", Same),
    (Aux, "exception_boundary", Same),
    (Aux, "priv_stack_requested", Same),
    (Aux, "jits_use_priv_stack", IfRequested),
    (Aux, "changes_pkt_data", Same),
    (Aux, "might_sleep", Same),
    (Aux, "kprobe_write_ctx", Same),
    (Aux, "arena", Null),
    (Aux, "bpf_exception_cb", Null),
    (Aux, "cgroup_storage", Null),
];
/// Of each function of a program, in `struct bpf_func_info_aux` (may another program take its place?) …
const OF_INFO: [&str; 3] = ["linkage", "unreliable", "called"];
/// … and in its own `struct bpf_prog_aux`.
const OF_FUNCTION: [&str; 4] = ["changes_pkt_data", "might_sleep", "exception_cb", "exception_boundary"];
/// The mark that stands for those of all functions.
const FUNCTIONS: &str = "what is noted of its functions";

/// What the kernel keeps of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marks {
    /// In the order of [`NOTES`]; 0 where this kernel has no such note, 1 for a pointer that leads somewhere.
    notes: [u64; NOTES.len()],
    functions: OfFunctions,
}

/// The notes on all functions, which may stand in another order: sums of numbers that tell them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct OfFunctions {
    /// Of what is noted.
    notes: u64,
    /// Of the names.
    names: u64,
    /// Of what is noted of which name.
    named: u64,
    /// What is noted of one function is noted of all of its linkage.
    alike: bool,
}

impl OfFunctions {
    /// From what is noted of each, the linkage first, and their names and the numbers of their types as far as they are known.
    ///
    /// Functions that share a name are told apart by the order of their types, and those of one type by the order of the code:
    /// whoever attaches to one gets the first of its type (`bpf_check_attach_target` in kernel/bpf/verifier.c).
    fn of(notes: &[Vec<u64>], names: &[(String, u32)]) -> Self {
        let number = |value: &dyn Fn(&mut DefaultHasher)| {
            let mut hasher = DefaultHasher::new();
            value(&mut hasher);
            hasher.finish()
        };
        let name = |at: usize| {
            let (name, id) = names.get(at)?;
            let of_name: BTreeSet<u32> = names.iter().filter(|(other, _)| other == name).map(|(_, id)| *id).collect();
            let before = names[..at].iter().filter(|other| **other == names[at]).count();
            Some((name, of_name.iter().position(|other| other == id), before))
        };
        let sum = |of: &dyn Fn(usize) -> u64| (0..notes.len()).map(of).fold(0, u64::wrapping_add);
        let differ = |a: &Vec<u64>| notes.iter().any(|b| a.first() == b.first() && a != b);
        Self {
            notes: sum(&|at| number(&|h| notes[at].hash(h))),
            names: sum(&|at| number(&|h| name(at).hash(h))),
            named: sum(&|at| number(&|h| (name(at), &notes[at]).hash(h))),
            alike: !notes.iter().any(differ),
        }
    }

    /// Whether the same is noted of the same functions. Of those that have other names it is not known which are the same.
    fn agree(&self, other: &Self) -> bool {
        let of_each = if self.names == other.names { self.named == other.named } else { self.alike };
        self.notes == other.notes && of_each
    }
}

/// A tail call that the kernel has wired to one element of its table, since the verifier takes the index for a constant
/// (`struct bpf_jit_poke_descriptor`, whose `tail_call` is a pointer and the index).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wired {
    /// Where it stands in the translated program.
    pub(crate) slot: u32,
    /// Which element.
    pub(crate) index: u32,
    /// The name of the table, as far as the kernel keeps it.
    pub(crate) map: String,
}

impl Wired {
    /// Those of a loaded program; `None` where they cannot be read.
    pub(crate) fn of(program: BorrowedFd<'_>, id: u32) -> Option<Vec<Self>> {
        reader()?.lock().unwrap_or_else(PoisonError::into_inner).wired(program, id)
    }
}

/// Makes what is needed to read kernel memory, unless it is there.
pub(crate) fn prepare() {
    reader();
}

fn reader() -> Option<&'static Mutex<Reader>> {
    static READER: OnceLock<Option<Mutex<Reader>>> = OnceLock::new();
    READER.get_or_init(|| Reader::new().map(Mutex::new)).as_ref()
}

impl Marks {
    /// The marks of a loaded program, whose functions have these names; `None` where they cannot be read.
    pub(crate) fn of(program: BorrowedFd<'_>, id: u32, names: &[(String, u32)]) -> Option<Self> {
        reader()?.lock().unwrap_or_else(PoisonError::into_inner).marks(program, id, names)
    }

    /// The name of the first mark by which a program cannot take the place of this one.
    pub fn differs_from(&self, old: &Marks) -> Option<&'static str> {
        let requested = NOTES.iter().zip(&old.notes).any(|(note, held)| note.1 == "priv_stack_requested" && *held != 0);
        let notes = NOTES.iter().zip(old.notes.iter().zip(&self.notes));
        let mut wrong = notes.filter(|((_, _, relation), (old, new))| match relation {
            Same | Null => old != new,
            AtMost => new > old,
            IfRequested => requested && old != new,
        });
        let functions = (!self.functions.agree(&old.functions)).then_some(FUNCTIONS);
        wrong.next().map(|((_, name, _), _)| *name).or(functions)
    }
}

/// Reads kernel memory.
struct Reader {
    program: RawProgram,
    /// What was read last.
    window: Map,
    layout: Layout,
}

/// Where things stand in this kernel.
struct Layout {
    structures: [(&'static str, Vec<Member>); STRUCTURES.len()],
}

/// Structures of the kernel that lead from a descriptor to a program, and of the program.
const STRUCTURES: [&str; 9] = [
    "task_struct",
    "files_struct",
    "fdtable",
    "file",
    "bpf_prog",
    "bpf_prog_aux",
    "bpf_func_info_aux",
    "bpf_jit_poke_descriptor",
    "bpf_map",
];
/// The most bytes that are read at once.
const WINDOW: usize = 4096;
/// More functions than the verifier takes (`BPF_MAX_SUBPROGS`).
const MOST_FUNCTIONS: u64 = 256;
/// Bytes of a pointer.
const POINTER: u64 = 8;

impl Reader {
    fn new() -> Option<Self> {
        let types = Types::of_kernel().ok()?;
        let layout = Layout { structures: STRUCTURES.map(|name| (name, types.layout(name))) };
        let window = Map::create(bpf_platform::maps::ARRAY, 4, WINDOW as u32, 1).ok()?;
        let program = RawProgram::load(ProgramType::RAW_TRACEPOINT, &code(window.fd()), &RawOptions::default()).ok()?;
        Some(Reader { program, window, layout })
    }

    /// Bytes of kernel memory, at most [`WINDOW`]; from address 0, the address of the running task.
    fn read(&self, address: u64, bytes: usize) -> Option<Vec<u8>> {
        if bytes > WINDOW {
            return None;
        }
        let arguments = [address.to_ne_bytes(), (bytes as u64).to_ne_bytes()].concat();
        let ran = self.program.test_run(&[], Some(&arguments), 1).ok()?;
        let mut value = self.window.lookup(&[0; 4]).ok()??;
        value.truncate(bytes);
        (ran.retval == 0).then_some(value)
    }

    fn word(&self, address: u64) -> Option<u64> {
        Some(u64::from_ne_bytes(self.read(address, POINTER as usize)?.try_into().ok()?))
    }

    /// The pointer in a member of a structure.
    fn follow(&self, address: u64, structure: &str, member: &str) -> Option<u64> {
        let at = self.layout.member(structure, member)?.bit / 8;
        self.word(address + u64::from(at)).filter(|to| *to != 0)
    }

    /// Notes in the structure at an address, in their order.
    fn notes(&self, address: u64, structure: &str, names: &[&str]) -> Option<Vec<u64>> {
        let members: Vec<Option<&Member>> = names.iter().map(|name| self.layout.member(structure, name)).collect();
        let end = members.iter().flatten().map(|m| (m.bit + m.bits).div_ceil(8)).max()?;
        let bytes = self.read(address, end as usize)?;
        Some(members.into_iter().map(|m| m.map_or(0, |m| m.value(&bytes))).collect())
    }

    /// The addresses of a loaded program and of its `struct bpf_prog_aux`.
    fn program(&self, program: BorrowedFd<'_>, id: u32) -> Option<(u64, u64)> {
        let files = self.follow(self.word(0)?, "task_struct", "files")?;
        let table = self.follow(files, "files_struct", "fdt")?;
        let descriptors = self.follow(table, "fdtable", "fd")?;
        let descriptor = u64::try_from(program.as_raw_fd()).ok()?;
        let file = self.word(descriptors + POINTER * descriptor)?;
        let program = self.follow(file, "file", "private_data")?;
        let aux = self.follow(program, "bpf_prog", "aux")?;
        (self.notes(aux, "bpf_prog_aux", &["id"])? == [u64::from(id)]).then_some((program, aux))
    }

    fn marks(&self, program: BorrowedFd<'_>, id: u32, names: &[(String, u32)]) -> Option<Marks> {
        let (program, aux) = self.program(program, id)?;
        let of = |holder: Holder| -> Vec<&str> { NOTES.iter().filter(|n| n.0 == holder).map(|n| n.1).collect() };
        let mut notes = self.notes(program, "bpf_prog", &of(Program))?;
        notes.extend(self.notes(aux, "bpf_prog_aux", &of(Aux))?);
        for (note, _) in notes.iter_mut().zip(NOTES).filter(|(_, (_, _, relation))| *relation == Null) {
            *note = u64::from(*note != 0);
        }
        Some(Marks { notes: notes.try_into().ok()?, functions: OfFunctions::of(&self.functions(aux)?, names) })
    }

    fn wired(&self, program: BorrowedFd<'_>, id: u32) -> Option<Vec<Wired>> {
        let (_, aux) = self.program(program, id)?;
        let count = self.notes(aux, "bpf_prog_aux", &["size_poke_tab"])?[0];
        let size = self.layout.size("bpf_jit_poke_descriptor")?.next_multiple_of(POINTER);
        let tail_call = u64::from(self.layout.member("bpf_jit_poke_descriptor", "tail_call")?.bit / 8);
        let name = self.layout.member("bpf_map", "name")?;
        let table = if count > 0 { self.follow(aux, "bpf_prog_aux", "poke_tab")? } else { 0 };
        (0..count)
            .map(|i| {
                let at = table + i * size;
                let slot = self.notes(at, "bpf_jit_poke_descriptor", &["insn_idx"])?[0] as u32;
                let map = self.read(self.word(at + tail_call)? + u64::from(name.bit / 8), name.bits as usize / 8)?;
                let map = map.split(|byte| *byte == 0).next().unwrap_or_default();
                let index = u32::from_ne_bytes(self.read(at + tail_call + POINTER, 4)?.try_into().ok()?);
                Some(Wired { slot, index, map: String::from_utf8_lossy(map).into_owned() })
            })
            .collect()
    }

    /// The notes on the functions of a program, which is the first of them; the linkage first, where it is known.
    fn functions(&self, aux: u64) -> Option<Vec<Vec<u64>>> {
        let member = |name| self.layout.member("bpf_prog_aux", name).map(|m| aux + u64::from(m.bit / 8));
        let counts = self.notes(aux, "bpf_prog_aux", &["func_info_cnt", "real_func_cnt"])?;
        let (described, real) = (counts[0].min(MOST_FUNCTIONS), counts[1].min(MOST_FUNCTIONS));
        let (infos, functions) = (self.word(member("func_info_aux")?)?, self.word(member("func")?)?);
        let size = self.layout.size("bpf_func_info_aux")?;
        let of_one = |index: u64| {
            let mut notes = Vec::new();
            if infos != 0 && index < described {
                notes.extend(self.notes(infos + index * size, "bpf_func_info_aux", &OF_INFO)?);
            }
            if functions != 0 && index < real {
                let function = self.word(functions + POINTER * index)?;
                let its_aux = self.follow(function, "bpf_prog", "aux")?;
                notes.extend(self.notes(its_aux, "bpf_prog_aux", &OF_FUNCTION)?);
            }
            Some(notes)
        };
        (0..described.max(real)).map(of_one).collect()
    }
}

impl Layout {
    fn member(&self, structure: &str, name: &str) -> Option<&Member> {
        let (_, members) = self.structures.iter().find(|(n, _)| *n == structure)?;
        members.iter().find(|m| m.name == name)
    }

    /// Bytes from one element of an array of structures to the next.
    fn size(&self, structure: &str) -> Option<u64> {
        let (_, members) = self.structures.iter().find(|(n, _)| *n == structure)?;
        let end = members.iter().map(|m| (m.bit + m.bits).div_ceil(8)).max()?;
        Some(u64::from(end.next_multiple_of(2)))
    }
}

/// A program that copies as many bytes as its second argument says from the address in its first one into the window; if
/// that is 0, the address of the running task.
fn code(window: i32) -> Vec<u8> {
    let slot = |opcode: u8, dst: u8, src: u8, off: i16, imm: i32| -> [u8; 8] {
        let mut bytes = [opcode, src << 4 | dst, 0, 0, 0, 0, 0, 0];
        bytes[2..4].copy_from_slice(&off.to_ne_bytes());
        bytes[4..].copy_from_slice(&imm.to_ne_bytes());
        bytes
    };
    let number = |name: &str| Helper::named(name).map_or(-1, |h| h.id);
    let (current_task, probe_read) = (number("get_current_task"), number("probe_read_kernel"));
    [
        slot(0x79, 3, 1, 0, 0),             // r3 = *(u64 *)(r1 + 0)
        slot(0x79, 2, 1, 8, 0),             // r2 = *(u64 *)(r1 + 8)
        slot(0x18, 6, 2, 0, window),        // r6 = the window's value ll
        slot(0, 0, 0, 0, 0),                //
        slot(0x15, 3, 0, 4, 0),             // if r3 == 0 goto current
        slot(0x25, 2, 0, 5, WINDOW as i32), // if r2 > WINDOW goto end
        slot(0xbf, 1, 6, 0, 0),             // r1 = r6
        slot(0x85, 0, 0, 0, probe_read),    // call bpf_probe_read_kernel
        slot(0x95, 0, 0, 0, 0),             // exit
        slot(0x85, 0, 0, 0, current_task),  // current: call bpf_get_current_task
        slot(0x7b, 6, 0, 0, 0),             // *(u64 *)(r6 + 0) = r0
        slot(0xb7, 0, 0, 0, 0),             // end: r0 = 0
        slot(0x95, 0, 0, 0, 0),             // exit
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOCKET_FILTER: ProgramType = ProgramType(1);

    /// The marks of a socket filter with these instructions.
    fn marks(code: &[[u8; 8]]) -> Marks {
        let program = RawProgram::load(SOCKET_FILTER, &code.concat(), &RawOptions::default()).expect("it loads");
        let id = program.info().expect("it is described").id;
        let found = Marks::of(std::os::fd::AsFd::as_fd(&program), id, &[]).expect("the kernel lets its memory be read");
        assert_eq!(Marks::of(std::os::fd::AsFd::as_fd(&program), id + 1, &[]), None, "it is another program");
        found
    }

    #[test]
    fn notes_belong_to_functions() {
        let of_types = |functions: &[(&str, u32, [u64; 2])]| {
            let (names, notes): (Vec<(String, u32)>, Vec<Vec<u64>>) =
                functions.iter().map(|(name, id, notes)| ((name.to_string(), *id), notes.to_vec())).unzip();
            OfFunctions::of(&notes, &names)
        };
        let of = |functions: &[(&str, [u64; 2])]| {
            let numbered = functions.iter().zip(1..).map(|((name, notes), id)| (*name, id, *notes));
            of_types(&numbered.collect::<Vec<_>>())
        };
        let two = of(&[("f", [0, 1]), ("g", [0, 2])]);
        assert!(two.agree(&of(&[("g", [0, 2]), ("f", [0, 1])])));
        assert!(!two.agree(&of(&[("g", [0, 1]), ("f", [0, 2])])));
        assert!(!two.agree(&of(&[("f", [0, 1])])) && !two.agree(&of(&[("f", [0, 1]), ("h", [0, 2])])));
        // Of one name they are told apart by their types, wherever these stand and in which order the code comes.
        let namesakes = of_types(&[("f", 5, [0, 1]), ("f", 6, [0, 2])]);
        assert!(namesakes.agree(&of_types(&[("f", 9, [0, 2]), ("f", 7, [0, 1])])));
        assert!(!namesakes.agree(&of_types(&[("f", 5, [0, 2]), ("f", 6, [0, 1])])));
        // Of one type, too, by the order of the code.
        let of_one_type = of_types(&[("f", 5, [0, 1]), ("f", 5, [0, 2])]);
        assert!(of_one_type.agree(&of_types(&[("f", 7, [0, 1]), ("f", 7, [0, 2])])));
        assert!(!of_one_type.agree(&of_types(&[("f", 5, [0, 2]), ("f", 5, [0, 1])])));
        let alike = of(&[("main", [1, 3]), ("f", [0, 1]), ("g", [0, 1])]);
        assert!(alike.agree(&of(&[("main", [1, 3]), ("g", [0, 1]), ("h", [0, 1])])));
    }

    #[test]
    fn the_kernel_notes_what_a_program_accesses() {
        if !crate::testing::permitted() {
            return;
        }
        let read = |at: u8| [0x61, 0x10, at, 0, 0, 0, 0, 0];
        const CB: u8 = 48;
        const LEN: u8 = 0;
        const MARK: u8 = 8;
        let (exit, zero) = ([0x95, 0, 0, 0, 0, 0, 0, 0], [0xb7, 0, 0, 0, 0, 0, 0, 0]);
        let (cb, len, mark) = (marks(&[read(CB), exit]), marks(&[read(LEN), exit]), marks(&[read(MARK), zero, exit]));
        assert_eq!(cb.differs_from(&len), Some("cb_access"));
        assert_eq!(len.differs_from(&cb), Some("cb_access"));
        // How far a program reaches may become less.
        assert_eq!(mark.differs_from(&len), Some("max_ctx_offset"));
        assert_eq!(len.differs_from(&mark), None);
        assert_eq!(cb.differs_from(&cb), None);
    }
}
