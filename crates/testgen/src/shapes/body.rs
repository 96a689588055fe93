//! Code as compilers write it for real hooks: counters in maps, parsed bytes, events on the stack, small loops.
//!
//! One idea: a statement needs nothing of the one before. r6 is the context, r7 a number that collects what was found
//! out; all else is free between statements, and what a statement reads of the stack it has written. So any sequence is a
//! program that the verifier takes, as long as it is to be.
//!
//! Statements hold what compilers leave to be optimized: addresses and keys made again, bytes put together one by one,
//! structures cleared in pieces, masks of what is masked already.

use std::fmt::Write;

use crate::random::Rng;

/// Where a program runs: what its context offers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hook {
    /// XDP: packets.
    Xdp,
    /// A classifier: packets, and `struct __sk_buff`.
    Tc,
    /// A tracepoint: the fields of its record, behind eight bytes that are not for programs.
    Tracepoint,
    /// A kprobe: registers.
    Kprobe,
}

impl Hook {
    /// All of them.
    pub const ALL: [Hook; 4] = [Hook::Xdp, Hook::Tc, Hook::Tracepoint, Hook::Kprobe];

    /// Sections of such programs.
    pub fn sections(self) -> &'static [&'static str] {
        match self {
            Hook::Xdp => &["xdp"],
            Hook::Tc => &["tc", "classifier"],
            Hook::Tracepoint => {
                &["tracepoint/syscalls/sys_enter_openat", "tp/sched/sched_switch", "tracepoint/tcp/tcp_retransmit_skb"]
            }
            Hook::Kprobe => &["kprobe/do_unlinkat", "kprobe/tcp_v4_connect"],
        }
    }
}

/// A hash table that statements use: keys of 4 bytes, values of [`VALUE_BYTES`].
pub const TABLE: &str = "flows";
/// An array of that many such values.
pub const SETTINGS: &str = "settings";
/// Its length.
pub const SETTINGS_LENGTH: u64 = 16;
/// Bytes of their values.
pub const VALUE_BYTES: u64 = 32;
/// A static subprogram that statements call, of a number; see [`SUBPROGRAM`].
const CALLEE: &str = "scramble";

/// [`CALLEE`] as [`functions`](crate::assembly::functions) reads it.
pub const SUBPROGRAM: &str = "static scramble(u64) u64:
r0 = r1
r0 <<= 32
r0 >>= 32
r2 = r0
r2 >>= 7
r0 ^= r2
r0 *= 9
r0 <<= 32
r0 >>= 32
exit
";

/// Fields of `struct __sk_buff` (include/uapi/linux/bpf.h) that classifiers may read, four bytes each.
const SKB_FIELDS: [u32; 6] = [0, 4, 8, 16, 40, 68];
/// Fields of `struct xdp_md` likewise: `ingress_ifindex`, `rx_queue_index`.
const XDP_FIELDS: [u32; 2] = [12, 16];
/// Registers in `struct pt_regs` of x86-64, which any kernel lets a program read as numbers.
const REGISTERS: [u32; 4] = [112, 104, 96, 88];

/// A program being written.
pub struct Body<'r> {
    r: &'r mut Rng,
    hook: Hook,
    /// Statements may call [`CALLEE`].
    calls: bool,
    text: String,
    slots: usize,
    labels: usize,
}

impl<'r> Body<'r> {
    /// The beginning of a program.
    pub fn new(r: &'r mut Rng, hook: Hook) -> Body<'r> {
        let mut body = Body { r, hook, calls: false, text: String::new(), slots: 0, labels: 0 };
        body.write("r6 = r1; r7 = 0");
        body
    }

    /// Has statements call [`CALLEE`], which the object must have then.
    pub fn with_calls(self) -> Body<'r> {
        Body { calls: true, ..self }
    }

    /// Adds lines, separated by `;`.
    pub fn write(&mut self, lines: &str) {
        for line in lines.split(';').map(str::trim).filter(|line| !line.is_empty()) {
            let _ = writeln!(self.text, "{line}");
            self.slots += match line {
                line if line.ends_with(':') => 0,
                line if line.ends_with(" ll") => 2,
                _ => 1,
            };
        }
    }

    /// Adds random statements until there are about so many slots, the end included.
    pub fn fill(mut self, slots: usize) -> Body<'r> {
        while self.slots + 30 < slots {
            self.statement();
        }
        self
    }

    /// Writes down what was found out, and returns.
    pub fn finish(mut self) -> String {
        self.event();
        match self.hook {
            // XDP_DROP or XDP_PASS.
            Hook::Xdp => self.write("r0 = r7; r0 &= 1; r0 += 1; exit"),
            _ => self.write("r0 = 0; exit"),
        }
        self.text
    }

    /// A label that nothing has yet.
    pub fn label(&mut self) -> String {
        self.labels += 1;
        format!("L{}", self.labels)
    }

    fn statement(&mut self) {
        match self.r.below(if self.calls { 11 } else { 10 }) {
            0 | 1 => self.context(),
            2 => self.count(),
            3 => self.bytes_of_a_value(),
            4 => self.event(),
            5 => self.masks(),
            6 => self.choice(),
            7 => self.spill(),
            8 => self.loop_of_numbers(),
            9 => self.loop_of_lookups(),
            _ => self.write(&format!("r1 = r7; call {CALLEE}; r7 = r0")),
        }
    }

    /// Looks for a value; r0 points to it until `over`, the label this returns.
    pub fn lookup(&mut self, map: &str, key: u64) -> String {
        let over = self.label();
        self.write(&format!(
            "r1 = {key}; *(u32 *)(r10 - 4) = r1; r2 = r10; r2 += -4; r1 = {map} ll; call bpf_map_lookup_elem;
             if r0 == 0 goto {over}"
        ));
        over
    }

    /// The end of what a label is the end of.
    pub fn end(&mut self, label: &str) {
        self.write(&format!("{label}:"));
    }

    fn count(&mut self) {
        let key = self.r.below(4096);
        let over = self.lookup(TABLE, key);
        let (at, by) = (8 * self.r.below(VALUE_BYTES / 8), 1 + self.r.below(1500));
        self.write(&format!("r1 = *(u64 *)(r0 + {at}); r1 += {by}; *(u64 *)(r0 + {at}) = r1"));
        self.end(&over);
    }

    fn bytes_of_a_value(&mut self) {
        let key = self.r.below(SETTINGS_LENGTH);
        let over = self.lookup(SETTINGS, key);
        let at = 4 * self.r.below(VALUE_BYTES / 4);
        self.together("r0", at);
        self.end(&over);
    }

    /// Adds four bytes that are put together one by one, as for memory that may not be aligned.
    fn together(&mut self, from: &str, at: u64) {
        self.write(&format!("r1 = *(u8 *)({from} + {at})"));
        for byte in 1..4 {
            self.write(&format!("r2 = *(u8 *)({from} + {}); r2 <<= {}; r1 |= r2", at + byte, 8 * byte));
        }
        self.write("r7 += r1");
    }

    /// Clears a structure on the stack piece by piece, sets some of it and puts it into the table.
    fn event(&mut self) {
        self.write("r1 = 0");
        for at in (0..VALUE_BYTES).step_by(4) {
            self.write(&format!("*(u32 *)(r10 - {}) = r1", 8 + VALUE_BYTES - at));
        }
        let key = self.r.below(4096);
        self.write(&format!(
            "*(u64 *)(r10 - {0}) = r7; r1 = {key}; *(u32 *)(r10 - 4) = r1; r2 = r10; r2 += -4; r3 = r10; r3 += -{0};
             r1 = {TABLE} ll; r4 = 0; call bpf_map_update_elem",
            8 + VALUE_BYTES
        ));
    }

    fn masks(&mut self) {
        let (a, b, over, join) = (self.r.below(255), self.r.below(99), self.label(), self.label());
        self.write(&format!(
            "r1 = r7; r1 <<= 32; r1 >>= 32; r1 &= 255; r2 = r1; r2 &= 4095; if r2 == {a} goto {over}; r7 += r1; r7 += {b};
             goto {join}; {over}:; r7 ^= {b}; {join}:"
        ));
    }

    fn choice(&mut self) {
        let [one, two, three, join] = [(); 4].map(|()| self.label());
        let numbers = [(); 3].map(|()| self.r.below(1 << 20));
        self.write(&format!(
            "r1 = r7; r1 &= 7; if r1 == 1 goto {one}; if r1 == 2 goto {two}; if r1 == 3 goto {three}; goto {join};
             {one}:; r7 += {}; goto {join}; {two}:; r7 += {}; goto {join}; {three}:; r7 += {}; {join}:",
            numbers[0], numbers[1], numbers[2]
        ));
    }

    fn spill(&mut self) {
        let (at, by) = (8 * (6 + self.r.below(4)), self.r.below(1000));
        self.write(&format!(
            "*(u64 *)(r10 - {at}) = r7; r1 = {by}; r2 = *(u64 *)(r10 - {at}); r2 += r1; *(u64 *)(r10 - {at}) = r2;
             r7 = *(u64 *)(r10 - {at})"
        ));
    }

    fn loop_of_numbers(&mut self) {
        let (again, times, by) = (self.label(), 2 + self.r.below(7), self.r.below(1000));
        self.write(&format!(
            "r8 = 0; {again}:; r1 = r7; r1 >>= 3; r7 += r1; r7 ^= {by}; r8 += 1; if r8 != {times} goto {again}"
        ));
    }

    fn loop_of_lookups(&mut self) {
        let (again, next, times) = (self.label(), self.label(), 2 + self.r.below(5));
        let at = 8 * self.r.below(VALUE_BYTES / 8);
        self.write(&format!(
            "r8 = 0; {again}:; *(u32 *)(r10 - 4) = r8; r2 = r10; r2 += -4; r1 = {SETTINGS} ll; call bpf_map_lookup_elem;
             if r0 == 0 goto {next}; r1 = *(u64 *)(r0 + {at}); r7 += r1; {next}:; r8 += 1; if r8 < {times} goto {again}"
        ));
    }

    /// Something of the context.
    fn context(&mut self) {
        match self.hook {
            Hook::Xdp if self.r.chance(3) => self.fields(&XDP_FIELDS),
            Hook::Xdp => self.packet(0, 4),
            Hook::Tc if self.r.chance(2) => self.fields(&SKB_FIELDS),
            Hook::Tc => self.packet(76, 80),
            Hook::Tracepoint => self.record(),
            Hook::Kprobe => {
                let at = self.r.one_of(&REGISTERS);
                self.write(&format!(
                    "r1 = *(u64 *)(r6 + {at}); r7 += r1; call bpf_get_current_pid_tgid; r0 >>= 32; r7 ^= r0"
                ));
            }
        }
    }

    fn fields(&mut self, fields: &[u32]) {
        let at = self.r.one_of(fields);
        self.write(&format!("r1 = *(u32 *)(r6 + {at}); r1 <<= 32; r1 >>= 32; r7 += r1"));
    }

    /// Bytes of a packet, behind a check that they are there. `data` and `data_end`: where the context has them.
    fn packet(&mut self, data: u32, data_end: u32) {
        let (over, at) = (self.label(), 2 * self.r.below(28));
        self.write(&format!(
            "r2 = *(u32 *)(r6 + {data_end}); r1 = *(u32 *)(r6 + {data}); r3 = r1; r3 += {}; if r3 > r2 goto {over}; r3 = r1",
            at + 4
        ));
        self.together("r3", at);
        self.end(&over);
    }

    /// Neighbouring fields of a tracepoint's record, which come in pairs of four bytes at any multiple of four, copied to
    /// the stack. The kernel takes reads of a record only at multiples of their width (`tp_prog_is_valid_access` in
    /// kernel/trace/bpf_trace.c).
    pub fn record(&mut self) {
        let at = 8 + 4 * self.r.below(14);
        self.write(&format!(
            "r1 = *(u32 *)(r6 + {at}); r2 = *(u32 *)(r6 + {}); *(u32 *)(r10 - 48) = r1; *(u32 *)(r10 - 44) = r2;
             r1 = *(u64 *)(r10 - 48); r7 += r1",
            at + 4
        ));
    }
}
