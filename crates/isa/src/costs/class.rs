//! Classes of operations that cost the same, as far as an instruction and little around it tell.

use crate::{AluOp, AtomicOp, Insn, Reg, Size, Src, Width};

/// Declares the classes, each with its name in tables, its rough weight in picoseconds, and what is measured.
macro_rules! classes {
    ($($class:ident $name:literal $rough:literal $meaning:literal;)*) => {
        /// A class of operations.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Class {
            $(#[doc = $meaning] $class,)*
        }

        impl Class {
            /// All of them, in the order of tables.
            pub const ALL: &[Class] = &[$(Class::$class),*];

            /// Its name in tables.
            pub const fn name(self) -> &'static str {
                match self { $(Class::$class => $name,)* }
            }

            /// What is measured of it.
            pub const fn meaning(self) -> &'static str {
                match self { $(Class::$class => $meaning,)* }
            }

            /// The weight that never changes ([`Costs::rough`](crate::Costs::rough)).
            pub(super) const fn rough(self) -> u32 {
                match self { $(Class::$class => $rough,)* }
            }
        }
    };
}

classes! {
    Copy "copy" 300 "copy of a register";
    Constant "constant" 300 "constant of 32 bits into a register";
    Constant64 "constant.64" 300 "constant of 64 bits into a register, such as the address of a map";
    Alu32 "alu.32" 300 "addition, logic, negation with 32 bits";
    Alu64 "alu.64" 300 "addition, logic, negation with 64 bits";
    Shift "shift" 300 "shift by a constant";
    ShiftRegister "shift.register" 300 "shift by a register";
    SignExtend "sign-extend" 300 "sign extension of a register";
    Mul32 "mul.32" 1000 "multiplication with 32 bits";
    Mul64 "mul.64" 1000 "multiplication with 64 bits";
    Div32 "div.32" 8000 "division or remainder by a register, 32 bits";
    Div64 "div.64" 8000 "division or remainder by a register, 64 bits";
    Div32Constant "div.32.constant" 8000 "division or remainder by a constant, 32 bits";
    Div64Constant "div.64.constant" 8000 "division or remainder by a constant, 64 bits";
    Swap16 "swap.16" 600 "byte order of 16 bits";
    Swap32 "swap.32" 300 "byte order of 32 bits";
    Swap64 "swap.64" 300 "byte order of 64 bits";
    LoadStack1 "load.stack.1" 1300 "load of 1 byte from the stack";
    LoadStack2 "load.stack.2" 1300 "load of 2 bytes from the stack";
    LoadStack4 "load.stack.4" 1300 "load of 4 bytes from the stack";
    LoadStack8 "load.stack.8" 1300 "load of 8 bytes from the stack";
    LoadPacket1 "load.packet.1" 1300 "load of 1 byte from the packet";
    LoadPacket2 "load.packet.2" 1300 "load of 2 bytes from the packet";
    LoadPacket4 "load.packet.4" 1300 "load of 4 bytes from the packet";
    LoadPacket8 "load.packet.8" 1300 "load of 8 bytes from the packet";
    LoadMap1 "load.map.1" 1300 "load of 1 byte from a map value";
    LoadMap2 "load.map.2" 1300 "load of 2 bytes from a map value";
    LoadMap4 "load.map.4" 1300 "load of 4 bytes from a map value";
    LoadMap8 "load.map.8" 1300 "load of 8 bytes from a map value";
    LoadContext "load.context" 1300 "load of a field of the context";
    LoadSigned "load.signed" 1300 "load with sign extension";
    LoadLegacy "load.legacy" 6000 "legacy packet load, such as `r0 = *(u16 *)skb[12]`";
    StoreStack1 "store.stack.1" 600 "store of 1 byte to the stack";
    StoreStack2 "store.stack.2" 600 "store of 2 bytes to the stack";
    StoreStack4 "store.stack.4" 600 "store of 4 bytes to the stack";
    StoreStack8 "store.stack.8" 600 "store of 8 bytes to the stack";
    StorePacket1 "store.packet.1" 600 "store of 1 byte to the packet";
    StorePacket2 "store.packet.2" 600 "store of 2 bytes to the packet";
    StorePacket4 "store.packet.4" 600 "store of 4 bytes to the packet";
    StorePacket8 "store.packet.8" 600 "store of 8 bytes to the packet";
    StoreMap1 "store.map.1" 600 "store of 1 byte to a map value";
    StoreMap2 "store.map.2" 600 "store of 2 bytes to a map value";
    StoreMap4 "store.map.4" 600 "store of 4 bytes to a map value";
    StoreMap8 "store.map.8" 600 "store of 8 bytes to a map value";
    StoreContext "store.context" 600 "store to a field of the context";
    StoreConstant "store.constant" 600 "store of a constant";
    ForwardStack "forward.stack" 1900 "8 bytes to the stack and back: a spill with its fill";
    ForwardSame "forward.same" 1900 "store and load of the same bytes";
    ForwardNarrower "forward.narrower" 1900 "store and load of a part of it";
    ForwardWider "forward.wider" 1900 "stores, and a load over several of them";
    BranchNotTaken "branch.not-taken" 300 "conditional jump that goes on";
    BranchTaken "branch.taken" 300 "conditional jump that jumps";
    BranchMispredicted "branch.mispredicted" 300 "what a wrong prediction takes besides";
    Jump "jump" 300 "unconditional jump";
    AtomicAdd "atomic.add" 5500 "atomic addition, or another operation without a result";
    AtomicFetchAdd "atomic.fetch-add" 5500 "atomic addition with the old value";
    AtomicFetchLogic "atomic.fetch-logic" 5500 "atomic and, or, exclusive or with the old value";
    AtomicXchg "atomic.xchg" 5500 "atomic exchange";
    AtomicCmpXchg "atomic.cmpxchg" 5500 "atomic comparison and exchange";
    CallHelper "call.helper" 6000 "call of a helper that is not below, without what it does";
    CallKtime "call.ktime" 6000 "bpf_ktime_get_ns";
    CallRandom "call.prandom" 6000 "bpf_get_prandom_u32";
    CallProcessor "call.processor-id" 6000 "bpf_get_smp_processor_id (in line)";
    CallLookupArray "call.lookup.array" 6000 "bpf_map_lookup_elem of an array (in line)";
    CallLookupPerCpu "call.lookup.percpu-array" 6000 "bpf_map_lookup_elem of an array per processor (in line)";
    CallLookupHash "call.lookup.hash" 6000 "bpf_map_lookup_elem of a hash, found";
    CallLookupMissed "call.lookup.hash-missed" 6000 "bpf_map_lookup_elem of a hash, not found";
    CallUpdateArray "call.update.array" 6000 "bpf_map_update_elem of an array";
    CallUpdateHash "call.update.hash" 6000 "bpf_map_update_elem of a hash, element there";
    CallCsumDiff "call.csum-diff" 6000 "bpf_csum_diff of 8 bytes";
    CallLocal "call.local" 6000 "call of a function of the program, and its return";
    CallTail "call.tail" 6000 "tail call";
}

impl Class {
    /// How many there are.
    pub const COUNT: usize = Class::ALL.len();

    /// The class of this name.
    pub fn named(name: &str) -> Option<Class> {
        Class::ALL.iter().find(|c| c.name() == name).copied()
    }

    /// The class of an instruction by itself. Memory that is not the frame's counts as the packet's; a helper, as any helper; a jump,
    /// as one that goes on.
    #[inline]
    pub const fn of(insn: &Insn) -> Class {
        match *insn {
            Insn::Alu { op, width, src, .. } => arithmetic(op, width, src),
            Insn::Mov { src: Src::Reg(_), .. } | Insn::AddrSpaceCast { .. } => Class::Copy,
            Insn::Mov { src: Src::Imm(_), .. } => Class::Constant,
            Insn::MovSx { .. } => Class::SignExtend,
            Insn::Neg { width: Width::W32, .. } => Class::Alu32,
            Insn::Neg { width: Width::W64, .. } => Class::Alu64,
            Insn::Endian { bits: 16, .. } => Class::Swap16,
            Insn::Endian { bits: 32, .. } => Class::Swap32,
            Insn::Endian { .. } => Class::Swap64,
            Insn::LoadImm64 { .. } => Class::Constant64,
            Insn::Load { sext: true, .. } => Class::LoadSigned,
            Insn::Load { size, base, .. } | Insn::LoadAcquire { size, base, .. } => match (size, is_frame(base)) {
                (Size::B, true) => Class::LoadStack1,
                (Size::H, true) => Class::LoadStack2,
                (Size::W, true) => Class::LoadStack4,
                (Size::DW, true) => Class::LoadStack8,
                (Size::B, false) => Class::LoadPacket1,
                (Size::H, false) => Class::LoadPacket2,
                (Size::W, false) => Class::LoadPacket4,
                (Size::DW, false) => Class::LoadPacket8,
            },
            Insn::Store { src: Src::Imm(_), .. } => Class::StoreConstant,
            Insn::Store { size, base, .. } | Insn::StoreRelease { size, base, .. } => match (size, is_frame(base)) {
                (Size::B, true) => Class::StoreStack1,
                (Size::H, true) => Class::StoreStack2,
                (Size::W, true) => Class::StoreStack4,
                (Size::DW, true) => Class::StoreStack8,
                (Size::B, false) => Class::StorePacket1,
                (Size::H, false) => Class::StorePacket2,
                (Size::W, false) => Class::StorePacket4,
                (Size::DW, false) => Class::StorePacket8,
            },
            Insn::Atomic { op, .. } => match op {
                AtomicOp::Xchg => Class::AtomicXchg,
                AtomicOp::CmpXchg => Class::AtomicCmpXchg,
                AtomicOp::Add { fetch: true } => Class::AtomicFetchAdd,
                AtomicOp::Or { fetch: true } | AtomicOp::And { fetch: true } | AtomicOp::Xor { fetch: true } => {
                    Class::AtomicFetchLogic
                }
                _ => Class::AtomicAdd,
            },
            Insn::Call(_) | Insn::CallX { .. } => Class::CallHelper,
            Insn::LdAbs { .. } | Insn::LdInd { .. } => Class::LoadLegacy,
            Insn::Jcc { .. } | Insn::MayGoto { .. } => Class::BranchNotTaken,
            Insn::Ja { .. } | Insn::Exit | Insn::Opaque(_) => Class::Jump,
        }
    }

    /// The same access, to a map value.
    #[must_use]
    pub const fn in_map(self) -> Class {
        match self {
            Class::LoadPacket1 => Class::LoadMap1,
            Class::LoadPacket2 => Class::LoadMap2,
            Class::LoadPacket4 => Class::LoadMap4,
            Class::LoadPacket8 => Class::LoadMap8,
            Class::StorePacket1 => Class::StoreMap1,
            Class::StorePacket2 => Class::StoreMap2,
            Class::StorePacket4 => Class::StoreMap4,
            Class::StorePacket8 => Class::StoreMap8,
            other => other,
        }
    }
}

const fn is_frame(base: Reg) -> bool {
    base.index() == Reg::R10.index()
}

const fn arithmetic(op: AluOp, width: Width, src: Src) -> Class {
    let is_wide = matches!(width, Width::W64);
    match (op, src) {
        (AluOp::Mul, _) if is_wide => Class::Mul64,
        (AluOp::Mul, _) => Class::Mul32,
        (AluOp::Div | AluOp::Mod | AluOp::SDiv | AluOp::SMod, Src::Reg(_)) if is_wide => Class::Div64,
        (AluOp::Div | AluOp::Mod | AluOp::SDiv | AluOp::SMod, Src::Reg(_)) => Class::Div32,
        (AluOp::Div | AluOp::Mod | AluOp::SDiv | AluOp::SMod, Src::Imm(_)) if is_wide => Class::Div64Constant,
        (AluOp::Div | AluOp::Mod | AluOp::SDiv | AluOp::SMod, Src::Imm(_)) => Class::Div32Constant,
        (AluOp::Lsh | AluOp::Rsh | AluOp::Arsh, Src::Reg(_)) => Class::ShiftRegister,
        (AluOp::Lsh | AluOp::Rsh | AluOp::Arsh, Src::Imm(_)) => Class::Shift,
        _ if is_wide => Class::Alu64,
        _ => Class::Alu32,
    }
}
