//! What libbpf would tell the kernel about a program when it loads it, as far as its public functions tell us.
//!
//! libbpf's own load reads flags and targets off section names (`section_defs` and `libbpf_prepare_prog_load` in
//! libbpf.c), and has no function that says what it came to. Where the rules are simple they are here; for the rest there
//! is no answer, and libbpf has to load the program itself.

use std::os::fd::BorrowedFd;

use crate::{
    ProgramType,
    object::STATISTICS,
    sys::{self, Attributes, attach_target},
};

/// `BPF_F_SLEEPABLE` and `BPF_F_XDP_HAS_FRAGS` in linux/bpf.h.
const SLEEPABLE: u32 = 1 << 4;
const XDP_HAS_FRAGS: u32 = 1 << 5;

/// Types whose programs attach to a function or hook of the kernel, named in the section: tracing and LSM.
const TARGETED: [u32; 2] = [26, 29];
/// Types that need more than a name: struct_ops (a map) and extensions (another program).
const STRUCT_OPS: u32 = 27;
const OF_LIBBPF: [u32; 2] = [STRUCT_OPS, 28];

/// Ids of attach targets that were looked up before: reading the kernel's BTF takes tens of milliseconds.
pub(super) type Targets = Vec<((String, u32), Option<u32>)>;

/// The attributes of a prepared program; `None` if only libbpf knows them.
pub(super) fn attributes(object: &sys::Object, index: usize, targets: &mut Targets) -> Option<Attributes> {
    let (section, kind) = (object.program_section(index), object.program_type(index));
    let by_section = sys::program_type_by_section(&section);
    // libbpf heeds what the section says beside the type also when the type is another.
    if by_section.is_some_and(|(of_section, _)| of_section != kind) || OF_LIBBPF.contains(&kind) {
        return None;
    }
    // Of global functions the kernel would not know that they are.
    if object.hides_records(index) {
        return None;
    }
    let (prefix, target) = section.split_once('/').map_or((section.as_str(), None), |(p, t)| (p, Some(t)));
    // User space trace points become multi-uprobes where the kernel has those. Functions of modules need their BTF.
    if prefix.starts_with("usdt") || calls_a_module(object.instructions(index)) {
        return None;
    }
    let expected_attach_type = object.expected_attach_type(index);
    let flags = flags(object, index, prefix, by_section.is_some());
    let attach_target = match target {
        _ if !TARGETED.contains(&kind) => 0,
        // Targets of other BTF than the kernel's own are written `module:function`.
        Some(target) if !target.contains(':') => find(target, expected_attach_type, targets)?,
        _ => return None,
    };
    Some(Attributes { expected_attach_type, flags, attach_target, log_level: STATISTICS })
}

/// The attributes of a program of struct_ops that libbpf has loaded: which structure of the kernel its map stands for is
/// told by the kernel. `None` of other types, and of structures of modules, whose BTF has a descriptor that only libbpf has.
pub(super) fn of_loaded(object: &sys::Object, index: usize, loaded: BorrowedFd<'_>) -> Option<Attributes> {
    let hides = calls_a_module(object.instructions(index)) || object.hides_records(index);
    if object.program_type(index) != STRUCT_OPS || hides {
        return None;
    }
    let section = object.program_section(index);
    let prefix = section.split_once('/').map_or(section.as_str(), |(prefix, _)| prefix);
    let flags = flags(object, index, prefix, sys::program_type_by_section(&section).is_some());
    let attach_target = sys::attach_target_of_loaded(loaded).ok()??;
    Some(Attributes {
        expected_attach_type: object.expected_attach_type(index),
        flags,
        attach_target,
        log_level: STATISTICS,
    })
}

/// The flags that libbpf would give: those set, and those that the section's name stands for.
fn flags(object: &sys::Object, index: usize, prefix: &str, is_known: bool) -> u32 {
    let sleeps = is_known && (prefix.ends_with(".s") || prefix == "syscall");
    let has_fragments = object.program_type(index) == ProgramType::XDP.0 && prefix == "xdp.frags";
    let flag = |set: bool, flag: u32| if set { flag } else { 0 };
    object.program_flags(index) | flag(sleeps, SLEEPABLE) | flag(has_fragments, XDP_HAS_FRAGS)
}

fn find(target: &str, attach_type: u32, targets: &mut Targets) -> Option<u32> {
    if let Some((_, id)) = targets.iter().find(|((name, of), _)| name == target && *of == attach_type) {
        return *id;
    }
    let id = attach_target(target, attach_type);
    targets.push(((target.to_owned(), attach_type), id));
    id
}

/// Whether a kernel function is called that is not in the kernel's own BTF: `BPF_PSEUDO_KFUNC_CALL` with an offset that
/// is an index into descriptors, which only libbpf has.
fn calls_a_module(code: &[[u8; 8]]) -> bool {
    const CALL: u8 = 0x85;
    const PSEUDO_KFUNC_CALL: u8 = 2;
    code.iter().any(|insn| insn[0] == CALL && insn[1] >> 4 == PSEUDO_KFUNC_CALL && insn[2..4] != [0, 0])
}
