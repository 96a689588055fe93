//! The instructions of a program in the making.

use super::form::{COUNTERS, Counting, Ends, REPORT};
use super::frame::NOTED;
use super::hook::EbpfError;
use super::tails::{as_test, shortened};
use crate::language::Binary;
use crate::program::{BlockId, Operand};
use crate::steps::{Item, Label};
use crate::updatable::SetMap;

/// Where the packet's length is while it is counted.
pub(super) const LENGTH: u8 = 6;
/// Where the verdict is meanwhile.
const VERDICT: u8 = 7;
/// Where packets are rejected on their way.
const REJECT: Label = Label::Own(0);
/// Where verdicts are counted.
const COUNT: Label = Label::Own(1);

/// Instructions of assembly, and the labels that they jump to.
pub(super) struct Text {
    items: Vec<Item<String>>,
    /// How many labels there are.
    labels: usize,
    /// Every packet that comes so far in the block is rejected: what follows is not reached.
    pub(super) is_over: bool,
}

impl Text {
    pub(super) fn new() -> Text {
        Text { items: Vec::new(), labels: 2, is_over: false }
    }

    fn item(&mut self, item: Item<String>) {
        if !self.is_over {
            self.items.push(item);
        }
    }

    pub(super) fn line(&mut self, line: impl Into<String>) {
        self.item(Item::Plain(line.into()));
    }

    /// A name for a place.
    pub(super) fn label(&mut self) -> Label {
        self.labels += 1;
        Label::Own(self.labels - 1)
    }

    /// The place is here.
    pub(super) fn place(&mut self, label: Label) {
        self.items.push(Item::Here(label));
    }

    pub(super) fn block(&mut self, i: usize) {
        self.is_over = false;
        self.place(Label::Block(BlockId(i)));
    }

    pub(super) fn goto(&mut self, to: Label) {
        self.item(Item::Jump(to));
    }

    /// Goes to one of two places, by a test: a register, a comparison, and a register or a number.
    pub(super) fn branch(&mut self, test: &str, yes: Label, no: Label) {
        self.item(as_test(test, yes, no));
    }

    /// Goes elsewhere if a test holds.
    pub(super) fn goto_if(&mut self, test: impl AsRef<str>, to: Label) {
        let behind = self.label();
        self.branch(test.as_ref(), to, behind);
        self.place(behind);
    }

    /// Rejects the packet if a test holds.
    pub(super) fn reject_if(&mut self, test: impl AsRef<str>) {
        self.goto_if(test, REJECT);
    }

    /// Rejects every packet that comes so far.
    pub(super) fn reject_all(&mut self) {
        self.goto(REJECT);
        self.is_over = true;
    }

    /// Computes in a register. `second` is the second operand as it stands in an instruction.
    pub(super) fn arithmetic(&mut self, op: Binary, at: u8, b: Operand, second: &str) {
        let is_shift = matches!(op, Binary::ShiftLeft | Binary::ShiftRight);
        match b {
            Operand::Constant(n) if is_shift && n > 31 => {
                self.line(format!("w{at} = 0"));
                return;
            }
            Operand::Register(_) if is_shift => {
                // The machine takes the count modulo 32.
                let label = self.label();
                self.goto_if(format!("{second} <= 31"), label);
                self.line(format!("w{at} = 0"));
                self.place(label);
            }
            _ => {}
        }
        // Of a copy plus a constant the verifier keeps the constant beside it, and lets one as large as this not be added to an
        // address (`check_reg_sane_offset`); of two constants it does not (`adjust_reg_min_max_vals`).
        const LARGE: u32 = 1 << 29;
        if let (Binary::Add | Binary::Sub, Operand::Constant(n)) = (op, b)
            && n.cast_signed().unsigned_abs() >= LARGE
        {
            let half = n.cast_signed() / 2;
            self.line(format!("w{at} {}= {half}", op.symbol()));
            self.line(format!("w{at} {}= {}", op.symbol(), n.cast_signed().wrapping_sub(half)));
            return;
        }
        self.line(format!("w{at} {}= {second}", op.symbol()));
    }

    /// Whether a register is greater than what stands behind it, as 1 or 0.
    pub(super) fn is_greater(&mut self, to: u8, a: u8, b: &str) {
        let label = self.label();
        self.line(format!("w{to} = 1"));
        self.goto_if(format!("w{a} > {b}"), label);
        self.line(format!("w{to} = 0"));
        self.place(label);
    }

    /// Returns a number.
    fn ret(&mut self, n: i32) {
        self.line(format!("w0 = {n}"));
        self.item(Item::End("exit".to_owned()));
    }

    /// Ends the program; one that counts goes on to `count`.
    pub(super) fn verdict(&mut self, accepts: bool, ends: Ends) {
        if ends.are_counted() {
            self.line(format!("w{VERDICT} = {}", u8::from(accepts)));
            self.goto(COUNT);
        } else {
            self.ret(if accepts { ends.actions.matched } else { ends.actions.other });
        }
    }

    /// The listing of the whole. `length`: how the packet's length comes to [`LENGTH`].
    pub(super) fn finish(mut self, ends: Ends, length: Vec<String>) -> Result<String, EbpfError> {
        self.is_over = false;
        let rejects = |item: &Item<String>| match item {
            Item::Jump(to) => *to == REJECT,
            Item::Branch { yes, no, .. } => [*yes, *no].contains(&REJECT),
            _ => false,
        };
        if self.items.iter().any(rejects) {
            self.place(REJECT);
            self.verdict(false, ends);
        }
        if ends.are_counted() {
            self.count(ends, length);
        }
        let listing = shortened(self.items, Label::Block(BlockId(0)), ends.actions.other);
        listing.ok_or_else(|| EbpfError::Unsupported("the program jumps backward".to_owned()))
    }

    /// Looks up the key of so many bytes that ends where the stack begins; `r0` is 0 if it is not there.
    pub(super) fn lookup_elem(&mut self, map: &str, size: u32) {
        self.line("r2 = r10");
        self.line(format!("r2 += -{size}"));
        self.line(format!("r1 = {map} ll"));
        self.line("call bpf_map_lookup_elem");
    }

    /// The length of a prefix's key: all bits count. Keys end where the stack begins, so that each word is aligned.
    pub(super) fn prefix_length(&mut self, map: &SetMap) {
        if map.by_prefix {
            self.line(format!("*(u32 *)(r10 - {}) = {}", map.key_size(), map.field.bits()));
        }
    }

    /// The packet has come to a predicate.
    pub(super) fn note(&mut self, predicate: u32, ends: Ends) {
        if ends.reports.is_some() {
            self.line(format!("*(u32 *)(r10 - {NOTED}) = {predicate}"));
        }
    }

    /// Adds to the counters of a verdict, and ends the program with it.
    fn count(&mut self, ends: Ends, length: Vec<String>) {
        self.place(COUNT);
        length.into_iter().for_each(|line| self.line(line));
        if let Some(counting) = ends.counts {
            self.line(format!("*(u32 *)(r10 - 4) = r{VERDICT}"));
            self.count_in(COUNTERS, counting);
        }
        if let Some(counting) = ends.reports {
            self.line(format!("r1 = *(u32 *)(r10 - {NOTED})"));
            self.line("r1 <<= 1");
            self.line(format!("r1 += r{VERDICT}"));
            self.line("*(u32 *)(r10 - 4) = r1");
            self.count_in(REPORT, counting);
        }
        let other = self.label();
        self.goto_if(format!("w{VERDICT} == 0"), other);
        self.ret(ends.actions.matched);
        self.place(other);
        self.ret(ends.actions.other);
    }

    /// Adds a packet and its bytes to the element whose key stands where the stack begins.
    fn count_in(&mut self, map: &str, counting: Counting) {
        let counted = self.label();
        self.lookup_elem(map, 4);
        self.goto_if("r0 == 0", counted);
        match counting {
            Counting::Plain => {
                for (offset, n) in [(0, "1".to_owned()), (8, format!("r{LENGTH}"))] {
                    self.line(format!("r1 = *(u64 *)(r0 + {offset})"));
                    self.line(format!("r1 += {n}"));
                    self.line(format!("*(u64 *)(r0 + {offset}) = r1"));
                }
            }
            Counting::Atomic => {
                self.line("r1 = 1");
                self.line("lock *(u64 *)(r0 + 0) += r1");
                self.line(format!("lock *(u64 *)(r0 + 8) += r{LENGTH}"));
            }
        }
        self.place(counted);
    }
}
