//! The programs that are timed: so many copies of one operation, in a chain or beside each other.
//!
//! All are classifiers (`BPF_PROG_TYPE_SCHED_CLS`, whose test runs cost little besides) that begin alike: the context is in r6, a value of
//! a map in r7, the packet in r8, a one in r9 of which the verifier knows nothing, and zeros of that kind in r0 to r5. What the copies are
//! made of is text in LLVM's syntax.
//!
//! A load cannot wait for another load, for what is loaded is no address to the verifier. So what is loaded is masked to zero and added to
//! the address, which the processor does not see through, and the two operations are taken off.

use std::fmt::Write;

use bpf_isa::Class;

/// Which of the two numbers of a class ([`bpf_isa::Cost`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Way {
    /// Each waits for the one before.
    Dependent,
    /// None waits for another.
    Independent,
}

/// What the listings need to know of maps.
pub(super) struct Fds {
    pub values: i32,
    pub array: i32,
    pub per_cpu: i32,
    pub hash: i32,
}

/// Words of the map's value, by their offsets.
pub(super) mod words {
    pub const ZERO: usize = 0;
    pub const ONE: usize = 8;
    pub const BIG: usize = 16;
    pub const RANDOM: usize = 24;
    /// A mask that leaves one bit, and one that leaves none.
    pub const MASKS: [usize; 2] = [32, 40];
    /// From here on programs write.
    pub const FREE: usize = 64;
    pub const SIZE: usize = 256;
}

/// One operation, to be copied.
pub(super) struct Micro {
    pub class: Class,
    pub way: Way,
    /// What comes before all copies, behind the common beginning.
    pub setup: String,
    /// The text of copy `i`.
    pub body: Box<dyn Fn(usize) -> String>,
    /// How many copies; the other program has half as many.
    pub copies: usize,
    /// What else is in a copy: so many of a class, to be taken off.
    pub besides: Vec<(u32, Class, Way)>,
    /// What comes behind all copies, before the end.
    pub after: &'static str,
    /// A function behind the program's end, which `call pc+N` in copies means (`N` is made right).
    pub function: &'static str,
    /// By what the time of a copy is multiplied.
    pub share: f64,
}

/// Offset of the data's beginning and end in `struct __sk_buff`, and of a field that can be read and written.
const DATA: usize = 76;
const DATA_END: usize = 80;
const MARK: usize = 8;
/// Bytes of the packet that programs use.
pub(super) const PACKET: usize = 128;
/// Copies of what takes a cycle or less, of what takes some, and of what takes many.
const MANY: usize = 2048;
const SOME: usize = 1024;
const FEW: usize = 64;

impl Micro {
    fn new(class: Class, way: Way, copies: usize, body: impl Fn(usize) -> String + 'static) -> Micro {
        Micro {
            class,
            way,
            setup: String::new(),
            body: Box::new(body),
            copies,
            besides: Vec::new(),
            after: "",
            function: "",
            share: 1.0,
        }
    }

    fn besides(self, besides: &[(u32, Class, Way)]) -> Micro {
        Micro { besides: besides.to_vec(), ..self }
    }

    fn setup(self, setup: impl Into<String>) -> Micro {
        Micro { setup: setup.into(), ..self }
    }

    /// The program with so many copies.
    pub fn listing(&self, copies: usize, fds: &Fds) -> String {
        let mut text = beginning(fds);
        text.push_str(&self.setup);
        for i in 0..copies {
            let body = (self.body)(i);
            // Every slot of a copy is a line, but for wide constants, which no program with a function has.
            let to_function = format!("pc+{}", 2 + (copies - 1 - i) * body.lines().count());
            let _ = writeln!(text, "{}", body.replace("pc+N", &to_function));
        }
        text.push_str(self.after);
        text.push_str("r0 = 0\nexit\n");
        text.push_str(self.function);
        let named = [("ARRAY", fds.array), ("PERCPU", fds.per_cpu), ("HASH", fds.hash)];
        named
            .into_iter()
            .fold(text, |text, (name, fd)| text.replace(&format!("map_fd[{name}]"), &format!("map_fd[{fd}]")))
    }
}

/// Registers, stack and memory that all programs begin with.
fn beginning(fds: &Fds) -> String {
    let (zero, one) = (words::ZERO, words::ONE);
    let mut text = format!(
        "r6 = r1\n\
         *(u32 *)(r10 - 4) = 0\n\
         r1 = map_fd[{}] ll\n\
         r2 = r10\n\
         r2 += -4\n\
         call 1\n\
         if r0 != 0 goto +2\n\
         r0 = 0\n\
         exit\n\
         r7 = r0\n\
         r8 = *(u32 *)(r6 + {DATA})\n\
         r2 = *(u32 *)(r6 + {DATA_END})\n\
         r3 = r8\n\
         r3 += {PACKET}\n\
         if r3 <= r2 goto +2\n\
         r0 = 0\n\
         exit\n\
         r9 = *(u64 *)(r7 + {one})\n",
        fds.values
    );
    for k in 0..6 {
        let _ = writeln!(text, "r{k} = *(u64 *)(r7 + {zero})");
    }
    for slot in 1..=16 {
        let _ = writeln!(text, "*(u64 *)(r10 - {}) = r0", 8 * slot);
    }
    text
}

/// All operations that are timed. Those that others are made of come first.
pub(super) fn all() -> Vec<Micro> {
    let mut all = arithmetic();
    all.extend(loads());
    all.extend(stores());
    all.extend(forwarding());
    all.extend(branches());
    all.extend(atomics());
    all.extend(calls());
    all
}

/// One of the six registers that copies beside each other use in turn.
fn turn(i: usize) -> usize {
    i % 6
}

fn arithmetic() -> Vec<Micro> {
    use Class::*;
    use Way::{Dependent, Independent};
    let mut all = vec![
        Micro::new(Copy, Dependent, MANY, |i| format!("r{} = r{}", 1 + (i + 1) % 2, 1 + i % 2)),
        Micro::new(Copy, Independent, MANY, |i| format!("r{} = r9", turn(i))),
        Micro::new(Constant, Independent, MANY, |i| format!("r{} = {}", turn(i), 1000 + i)),
        Micro::new(Constant64, Independent, SOME, |i| format!("r{} = 0x123456789abc ll", turn(i))),
    ];
    // What is done to a register again and again, so that its value stays.
    let ops = [
        (Alu32, "w$ += w9", MANY),
        (Alu64, "r$ += r9", MANY),
        (Shift, "r$ >>= 1", MANY),
        (ShiftRegister, "r$ >>= r9", SOME),
        (SignExtend, "r$ = (s32)r$", SOME),
        (Mul32, "w$ *= w9", SOME),
        (Mul64, "r$ *= r9", SOME),
        (Div32, "w$ /= w9", 4 * FEW),
        (Div64, "r$ /= r9", 4 * FEW),
        (Div32Constant, "w$ /= 1", 4 * FEW),
        (Div64Constant, "r$ /= 1", 4 * FEW),
        (Swap16, "r$ = be16 r$", SOME),
        (Swap32, "r$ = be32 r$", SOME),
        (Swap64, "r$ = be64 r$", SOME),
    ];
    let big: String = (0..6).map(|k| format!("r{k} = *(u64 *)(r7 + {})\n", words::BIG)).collect();
    for (class, text, copies) in ops {
        all.push(Micro::new(class, Dependent, copies, move |_| text.replace('$', "1")).setup(big.clone()));
        let independent = move |i| text.replace('$', &turn(i).to_string());
        all.push(Micro::new(class, Independent, copies, independent).setup(big.clone()));
    }
    all
}

/// A region of memory.
struct Region {
    /// Puts its address into r2.
    address: &'static str,
    /// The base with the offset of access `i` beside others.
    place: fn(usize) -> String,
    /// The classes of 1, 2, 4 and 8 bytes.
    loads: [Class; 4],
    stores: [Class; 4],
}

fn regions() -> [Region; 3] {
    use Class::*;
    [
        Region {
            address: "r2 = r10\nr2 += -64\n",
            place: |i| format!("r10 - {}", 8 * (1 + i % 16)),
            loads: [LoadStack1, LoadStack2, LoadStack4, LoadStack8],
            stores: [StoreStack1, StoreStack2, StoreStack4, StoreStack8],
        },
        Region {
            address: "r2 = r8\n",
            place: |i| format!("r8 + {}", 8 * (i % 16)),
            loads: [LoadPacket1, LoadPacket2, LoadPacket4, LoadPacket8],
            stores: [StorePacket1, StorePacket2, StorePacket4, StorePacket8],
        },
        Region {
            address: "r2 = r7\n",
            place: |i| format!("r7 + {}", words::FREE + 8 * (i % 16)),
            loads: [LoadMap1, LoadMap2, LoadMap4, LoadMap8],
            stores: [StoreMap1, StoreMap2, StoreMap4, StoreMap8],
        },
    ]
}

/// Widths of accesses in bits.
const BITS: [usize; 4] = [8, 16, 32, 64];
/// A loaded value becomes a part of the next address, and what of that is none of the load's.
const ONWARD: &str = "r1 &= 0\nr2 += r1";
const MASK_AND_ADD: [(u32, Class, Way); 1] = [(2, Class::Alu64, Way::Dependent)];

fn loads() -> Vec<Micro> {
    use Way::{Dependent, Independent};
    let mut all = Vec::new();
    for Region { address, place, loads, .. } in regions() {
        for (class, bits) in loads.into_iter().zip(BITS) {
            let chain = move |_| format!("r1 = *(u{bits} *)(r2 + 0)\n{ONWARD}");
            all.push(Micro::new(class, Dependent, SOME / 2, chain).setup(address).besides(&MASK_AND_ADD));
            let load = move |i| format!("r{} = *(u{bits} *)({})", turn(i), place(i));
            all.push(Micro::new(class, Independent, SOME, load));
        }
    }
    let chain = |_| format!("r1 = *(u32 *)(r2 + {MARK})\n{ONWARD}");
    all.push(Micro::new(Class::LoadContext, Dependent, SOME / 2, chain).setup("r2 = r6\n").besides(&MASK_AND_ADD));
    let load = |i| format!("r{} = *(u32 *)(r6 + {MARK})", turn(i));
    all.push(Micro::new(Class::LoadContext, Independent, SOME, load));
    let chain = |_| format!("r1 = *(s32 *)(r2 + 0)\n{ONWARD}");
    all.push(Micro::new(Class::LoadSigned, Dependent, SOME / 2, chain).setup("r2 = r8\n").besides(&MASK_AND_ADD));
    let load = |i| format!("r{} = *(s32 *)(r8 + {})", turn(i), 8 * (i % 16));
    all.push(Micro::new(Class::LoadSigned, Independent, SOME, load));
    all.push(Micro::new(Class::LoadLegacy, Independent, FEW, |_| "r0 = *(u16 *)skb[12]".to_owned()));
    all
}

fn stores() -> Vec<Micro> {
    use Way::Independent;
    let mut all = Vec::new();
    for Region { place, stores, .. } in regions() {
        for (class, bits) in stores.into_iter().zip(BITS) {
            let store = move |i| format!("*(u{bits} *)({}) = r9", place(i));
            all.push(Micro::new(class, Independent, SOME, store));
        }
    }
    let store = |_| format!("*(u32 *)(r6 + {MARK}) = r9");
    all.push(Micro::new(Class::StoreContext, Independent, SOME, store));
    let store = |i| format!("*(u32 *)(r8 + {}) = 7", 8 * (i % 16));
    all.push(Micro::new(Class::StoreConstant, Independent, SOME, store));
    all
}

/// The text of a store to a place, from a register, and of a load into another.
type Forward = fn(usize, &str, &str) -> String;

/// A store, and a load that waits for it. In the chain the loaded value is stored next; beside each other only the load's share is left.
fn forwarding() -> Vec<Micro> {
    use Class::*;
    use Way::{Dependent, Independent};
    let places: [(Class, Forward, (u32, Class)); 4] = [
        (
            ForwardStack,
            |at, from, to| format!("*(u64 *)(r10 - {0}) = {from}\n{to} = *(u64 *)(r10 - {0})", 8 + at),
            (1, StoreStack8),
        ),
        (
            ForwardSame,
            |at, from, to| format!("*(u64 *)(r7 + {0}) = {from}\n{to} = *(u64 *)(r7 + {0})", words::FREE + at),
            (1, StoreMap8),
        ),
        (
            ForwardNarrower,
            |at, from, to| format!("*(u64 *)(r7 + {0}) = {from}\n{to} = *(u16 *)(r7 + {0})", words::FREE + at),
            (1, StoreMap8),
        ),
        (
            ForwardWider,
            |at, from, to| {
                let (low, high) = (8 + at, 4 + at);
                format!("*(u32 *)(r10 - {low}) = {from}\n*(u32 *)(r10 - {high}) = {from}\n{to} = *(u64 *)(r10 - {low})")
            },
            (2, StoreStack4),
        ),
    ];
    let mut all = Vec::new();
    for (class, text, (stores, store)) in places {
        all.push(Micro::new(class, Dependent, SOME / 2, move |_| text(0, "r1", "r1")));
        let beside = move |i: usize| text(8 * (i % 16), "r9", &format!("r{}", turn(i)));
        all.push(Micro::new(class, Independent, SOME / 2, beside).besides(&[(stores, store, Independent)]));
    }
    all
}

fn branches() -> Vec<Micro> {
    use Class::*;
    use Way::Independent;
    // r1 is 0 and r9 is 1, and the verifier knows of neither. No more copies than programs have jumps: predictors have room for so many.
    let not_taken = Micro::new(BranchNotTaken, Independent, 4 * FEW, |_| "if r9 < r1 goto +1\nr3 = 1".to_owned());
    let taken = Micro::new(BranchTaken, Independent, 4 * FEW, |_| "if r1 < r9 goto +1\nr3 = 1".to_owned());
    let jump = Micro::new(Jump, Independent, 4 * FEW, |_| "if r9 < r1 goto +1\ngoto +1\nr3 = 1".to_owned());
    // A pseudo-random number decides, the same is kept from run to run; its time, and that of a branch, go with the program in which
    // another mask leaves no bit of it.
    const XORSHIFT: &str = "r1 = r4\nr1 <<= 13\nr4 ^= r1\nr1 = r4\nr1 >>= 7\nr4 ^= r1\nr1 = r4\nr1 <<= 17\nr4 ^= r1\n\
                            r2 = r4\nr2 &= r5\nif r2 < r9 goto +1\nr3 = 1";
    let after = "*(u64 *)(r7 + 24) = r4\n";
    let masked = |mask: usize, class: Class, way: Way| {
        let setup = format!("r4 = *(u64 *)(r7 + {})\nr5 = *(u64 *)(r7 + {mask})\n", words::RANDOM);
        Micro { after, ..Micro::new(class, way, 2 * FEW, |_| XORSHIFT.to_owned()).setup(setup) }
    };
    // Every second one is predicted by chance. What is measured with the other mask stands in the place of the chain's number until it
    // has been taken off.
    let predicted = masked(words::MASKS[1], BranchMispredicted, Way::Dependent);
    let besides = [(1, BranchMispredicted, Way::Dependent)];
    let random = Micro { share: 2.0, ..masked(words::MASKS[0], BranchMispredicted, Independent).besides(&besides) };
    vec![
        not_taken.besides(&[(1, Constant, Independent)]),
        taken,
        jump.besides(&[(1, BranchNotTaken, Independent)]),
        predicted,
        random,
    ]
}

fn atomics() -> Vec<Micro> {
    use Class::*;
    use Way::{Dependent, Independent};
    let ops: [(Class, &str); 5] = [
        (AtomicAdd, "lock *(u64 *)(r7 + @) += r9"),
        (AtomicFetchAdd, "r$ = atomic_fetch_add((u64 *)(r7 + @), r$)"),
        (AtomicFetchLogic, "r$ = atomic_fetch_or((u64 *)(r7 + @), r$)"),
        (AtomicXchg, "r$ = xchg_64(r7 + @, r$)"),
        (AtomicCmpXchg, "r0 = cmpxchg_64(r7 + @, r0, r$)"),
    ];
    let mut all = Vec::new();
    for (class, text) in ops {
        let at = |i: usize| (words::FREE + 8 * (i % 16)).to_string();
        all.push(Micro::new(class, Dependent, 2 * FEW, move |_| text.replace('@', &at(0)).replace('$', "1")));
        let beside = move |i: usize| text.replace('@', &at(i)).replace('$', &(1 + i % 5).to_string());
        all.push(Micro::new(class, Independent, 2 * FEW, beside));
    }
    all
}

fn calls() -> Vec<Micro> {
    use Class::*;
    use Way::Independent;
    let plain = |class: Class, number: u32| Micro::new(class, Independent, FEW, move |_| format!("call {number}"));
    let mut all = vec![
        // bpf_get_numa_node_id does next to nothing.
        plain(CallHelper, 42),
        plain(CallKtime, 5),
        plain(CallRandom, 7),
        plain(CallProcessor, 8),
    ];
    // A key that is there stands at r10 - 4 (an array's) or r10 - 16 (a hash's), one that is not at r10 - 24.
    let keys = "*(u32 *)(r10 - 4) = 0\n*(u64 *)(r10 - 16) = 1\n*(u64 *)(r10 - 24) = 2\n";
    let arguments = [(1, Constant64, Independent), (1, Copy, Independent), (1, Alu64, Independent)];
    for (class, map, key) in [
        (CallLookupArray, "ARRAY", 4),
        (CallLookupPerCpu, "PERCPU", 4),
        (CallLookupHash, "HASH", 16),
        (CallLookupMissed, "HASH", 24),
    ] {
        let body = move |_| format!("r1 = map_fd[{map}] ll\nr2 = r10\nr2 += -{key}\ncall 1");
        all.push(Micro::new(class, Independent, FEW, body).setup(keys).besides(&arguments));
    }
    let two =
        [(1, Constant64, Independent), (2, Copy, Independent), (2, Alu64, Independent), (1, Constant, Independent)];
    for (class, map, key) in [(CallUpdateArray, "ARRAY", 4), (CallUpdateHash, "HASH", 16)] {
        let body =
            move |_| format!("r1 = map_fd[{map}] ll\nr2 = r10\nr2 += -{key}\nr3 = r10\nr3 += -32\nr4 = 0\ncall 2");
        all.push(Micro::new(class, Independent, FEW, body).setup(keys).besides(&two));
    }
    let sum = |_| "r1 = r10\nr1 += -32\nr2 = 8\nr3 = r10\nr3 += -40\nr4 = 8\nr5 = 0\ncall 28".to_owned();
    let besides = [(2, Copy, Independent), (2, Alu64, Independent), (3, Constant, Independent)];
    all.push(Micro::new(CallCsumDiff, Independent, FEW, sum).besides(&besides));
    let local = Micro::new(CallLocal, Independent, 2 * FEW, |_| "call pc+N".to_owned());
    all.push(Micro { function: "r0 = 0\nexit\n", ..local.besides(&[(1, Constant, Independent)]) });
    all
}
