//! Values of a packet: what tests compare, each once.

use rustc_hash::FxHashMap;

pub(crate) use crate::language::Binary;

/// A value: an index of [`Values`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct ValueId(pub(crate) u32);

/// A variable that blocks of a [`crate::graph::Graph`] set. Before that it is 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Variable(pub(crate) u32);

/// An unsigned 32-bit number that a packet has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Value {
    Constant(u32),
    /// The packet's length on the wire.
    Length,
    /// Bytes of the packet, in network byte order, from `offset` behind `base` on. The sum does not wrap: what begins or ends
    /// behind the packet's captured part is not there, and a filter that reads it rejects the packet.
    Load {
        base: Option<ValueId>,
        offset: u32,
        size: u8,
    },
    /// Arithmetic that wraps. A divisor of 0 rejects the packet; shifts by more than 31 give 0.
    Binary(Binary, ValueId, ValueId),
    Negate(ValueId),
    /// 1 if the first is greater than the second, otherwise 0.
    IsGreater(ValueId, ValueId),
    Variable(Variable),
    Ancillary(Ancillary),
}

/// What the kernel knows of a packet that is not in its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ancillary {
    /// The interface's number.
    InterfaceIndex,
    /// `PACKET_HOST` …: 4 is outgoing.
    PacketType,
    /// 1 if the outermost VLAN tag was taken out of the packet.
    VlanPresent,
    /// That tag.
    VlanTag,
}

impl Ancillary {
    /// The offset at which classic BPF finds it (`include/uapi/linux/filter.h`: `SKF_AD_OFF` and what is behind it).
    pub fn classic_offset(self) -> u32 {
        let of = match self {
            Ancillary::PacketType => 4,
            Ancillary::InterfaceIndex => 8,
            Ancillary::VlanTag => 44,
            Ancillary::VlanPresent => 48,
        };
        (-0x1000i32 + of) as u32
    }

    /// The words of a filter that ask for it.
    pub(crate) fn asked_for_by(self) -> &'static str {
        match self {
            Ancillary::InterfaceIndex => "'ifindex'",
            Ancillary::PacketType => "'inbound' and 'outbound'",
            Ancillary::VlanPresent | Ancillary::VlanTag => "'vlan' of a tag beside the packet",
        }
    }

    /// How many bytes libpcap's code loads there. The kernel does not look at it.
    pub(crate) fn classic_size(self) -> u8 {
        match self {
            Ancillary::InterfaceIndex => 4,
            Ancillary::PacketType => 2,
            Ancillary::VlanTag | Ancillary::VlanPresent => 1,
        }
    }
}

/// All values of a filter: equal ones are the same.
#[derive(Clone, Default, Debug)]
pub(crate) struct Values {
    /// Each with the greatest number that it can be, by its form.
    all: Vec<(Value, u32)>,
    known: FxHashMap<Value, ValueId>,
}

impl Values {
    /// The offset of an IPv4 header whose length a value is, and the value that has it in words of four bytes.
    pub(crate) fn header_length(&self, value: ValueId) -> Option<(u32, ValueId)> {
        let Value::Binary(Binary::ShiftLeft, words, two) = self.get(value) else { return None };
        let Value::Binary(Binary::And, first, low) = self.get(words) else { return None };
        let Value::Load { base: None, offset, size: 1 } = self.get(first) else { return None };
        (self.as_constant(two) == Some(2) && self.as_constant(low) == Some(0xf)).then_some((offset, words))
    }

    /// The value of an id.
    pub(crate) fn get(&self, id: ValueId) -> Value {
        self.all[id.0 as usize].0
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// The id of a value, which is simplified where its operands are known.
    pub(crate) fn intern(&mut self, value: Value) -> ValueId {
        let value = self.simplified(value);
        if let Some(id) = self.known.get(&value) {
            return *id;
        }
        let id = ValueId(self.all.len() as u32);
        self.all.push((value, self.greatest_of(value)));
        self.known.insert(value, id);
        id
    }

    /// Whether there is such a value.
    pub(crate) fn contains(&self, value: Value) -> bool {
        self.known.contains_key(&value)
    }

    /// A number.
    pub(crate) fn constant(&mut self, n: u32) -> ValueId {
        self.intern(Value::Constant(n))
    }

    /// Arithmetic of two values.
    pub(crate) fn binary(&mut self, op: Binary, a: ValueId, b: ValueId) -> ValueId {
        self.intern(Value::Binary(op, a, b))
    }

    /// The number that a value is, whatever the packet.
    pub(crate) fn as_constant(&self, id: ValueId) -> Option<u32> {
        match self.get(id) {
            Value::Constant(n) => Some(n),
            _ => None,
        }
    }

    /// 1 if a number below 2^31 is `n`, which is below it, too; otherwise 0. Without a branch: what is computed of packets of
    /// several kinds is one expression.
    pub(crate) fn is_number(&mut self, a: ValueId, n: u32) -> ValueId {
        let n = self.constant(n);
        let difference = self.binary(Binary::Xor, a, n);
        self.is_zero(difference)
    }

    /// 1 if a number below 2^31 is 0, otherwise 0.
    pub(crate) fn is_zero(&mut self, a: ValueId) -> ValueId {
        let [one, sign] = [1, 31].map(|n| self.constant(n));
        let below = self.binary(Binary::Sub, a, one);
        self.binary(Binary::ShiftRight, below, sign)
    }

    /// The second if the first, which is 1 or 0, is 1; otherwise the third. Without a branch.
    pub(crate) fn chosen(&mut self, is: ValueId, then: ValueId, other: ValueId) -> ValueId {
        let difference = self.binary(Binary::Sub, then, other);
        let change = self.binary(Binary::Mul, difference, is);
        self.binary(Binary::Add, other, change)
    }

    /// The operands of a value.
    pub(crate) fn operands(&self, id: ValueId) -> impl Iterator<Item = ValueId> + use<> {
        let (a, b) = match self.get(id) {
            Value::Load { base, .. } => (base, None),
            Value::Binary(_, a, b) | Value::IsGreater(a, b) => (Some(a), Some(b)),
            Value::Negate(a) => (Some(a), None),
            Value::Constant(_) | Value::Length | Value::Variable(_) | Value::Ancillary(_) => (None, None),
        };
        a.into_iter().chain(b)
    }

    /// The greatest number that a value can be, by its form.
    pub(crate) fn greatest(&self, id: ValueId) -> u32 {
        self.all[id.0 as usize].1
    }

    fn greatest_of(&self, value: Value) -> u32 {
        match value {
            Value::Constant(n) => n,
            Value::Load { size: 1, .. } => 0xff,
            Value::Load { size: 2, .. } => 0xffff,
            // Of a value and itself.
            Value::Binary(Binary::Sub | Binary::Xor | Binary::Mod, a, b) | Value::IsGreater(a, b) if a == b => 0,
            Value::Binary(Binary::Div, a, b) if a == b => 1,
            Value::IsGreater(..) => 1,
            Value::Ancillary(Ancillary::VlanPresent) => 1,
            Value::Ancillary(Ancillary::VlanTag) => 0xffff,
            Value::Binary(Binary::And, a, b) => self.greatest(a).min(self.greatest(b)),
            Value::Binary(Binary::ShiftLeft, a, b) => match self.as_constant(b) {
                Some(n) if n < 32 => self.greatest(a).saturating_mul(1 << n),
                _ => u32::MAX,
            },
            Value::Binary(Binary::ShiftRight, a, b) => match self.as_constant(b) {
                Some(n) if n < 32 => self.greatest(a) >> n,
                _ => self.greatest(a),
            },
            Value::Binary(Binary::Add, a, b) => self.greatest(a).saturating_add(self.greatest(b)),
            Value::Binary(Binary::Mul, a, b) => self.greatest(a).saturating_mul(self.greatest(b)),
            Value::Binary(Binary::Mod, _, b) => match self.as_constant(b) {
                Some(n) => n.saturating_sub(1),
                None => u32::MAX,
            },
            Value::Binary(Binary::Or | Binary::Xor, a, b) => ones_below(self.greatest(a) | self.greatest(b)),
            Value::Binary(Binary::Div, a, _) => self.greatest(a),
            _ => u32::MAX,
        }
    }

    fn simplified(&self, value: Value) -> Value {
        match value {
            Value::Binary(op, a, b) => self.simplified_binary(op, a, b),
            Value::Negate(a) => match self.as_constant(a) {
                Some(n) => Value::Constant(n.wrapping_neg()),
                None => value,
            },
            Value::IsGreater(a, b) => match (self.as_constant(a), self.as_constant(b)) {
                (Some(a), Some(b)) => Value::Constant(u32::from(a > b)),
                _ => value,
            },
            Value::Load { base: Some(base), offset, size } => self.simplified_load(base, offset, size),
            _ => value,
        }
    }

    fn simplified_load(&self, base: ValueId, offset: u32, size: u8) -> Value {
        match self.get(base) {
            // What is behind 2^32 is in no packet: as good as the last byte of all.
            Value::Constant(n) => Value::Load { base: None, offset: n.saturating_add(offset), size },
            Value::Binary(Binary::Add, a, b) => match self.as_constant(b) {
                // Where the sum of base and constant cannot wrap, the constant is part of the offset.
                Some(n) if self.greatest(a).checked_add(n).is_some() && offset.checked_add(n).is_some() => {
                    Value::Load { base: Some(a), offset: offset + n, size }
                }
                _ => Value::Load { base: Some(base), offset, size },
            },
            _ => Value::Load { base: Some(base), offset, size },
        }
    }

    fn simplified_binary(&self, op: Binary, a: ValueId, b: ValueId) -> Value {
        // Constants stand to the right where that makes no difference.
        let commutes = matches!(op, Binary::Add | Binary::Mul | Binary::And | Binary::Or | Binary::Xor);
        let (a, b) = if commutes && self.as_constant(a).is_some() { (b, a) } else { (a, b) };
        let same = Value::Binary(op, a, b);
        match (self.as_constant(a), self.as_constant(b)) {
            (Some(x), Some(y)) => match apply(op, x, y) {
                Some(n) => Value::Constant(n),
                None => same,
            },
            (None, Some(y)) => match (op, y) {
                (Binary::Add | Binary::Sub | Binary::Or | Binary::Xor | Binary::ShiftLeft | Binary::ShiftRight, 0)
                | (Binary::Mul | Binary::Div, 1)
                | (Binary::And, u32::MAX) => self.get(a),
                (Binary::And, m) if m & self.greatest_bits(a) == self.greatest_bits(a) => self.get(a),
                // No operand goes: that it is not there must be seen.
                _ => same,
            },
            _ => same,
        }
    }

    /// All bits that a value may have.
    fn greatest_bits(&self, id: ValueId) -> u32 {
        ones_below(self.greatest(id))
    }
}

/// The number whose bits are those of `n` and all below its highest one.
fn ones_below(n: u32) -> u32 {
    u32::MAX.checked_shr(n.leading_zeros()).unwrap_or(0)
}

/// What arithmetic gives; `None` for a division by 0.
pub(crate) fn apply(op: Binary, a: u32, b: u32) -> Option<u32> {
    Some(match op {
        Binary::Add => a.wrapping_add(b),
        Binary::Sub => a.wrapping_sub(b),
        Binary::Mul => a.wrapping_mul(b),
        Binary::Div => a.checked_div(b)?,
        Binary::Mod => a.checked_rem(b)?,
        Binary::And => a & b,
        Binary::Or => a | b,
        Binary::Xor => a ^ b,
        Binary::ShiftLeft => a.checked_shl(b).unwrap_or(0),
        Binary::ShiftRight => a.checked_shr(b).unwrap_or(0),
    })
}
