//! Where context, packet and objects are in a replay, and words for an address.

pub(super) const CTX: u64 = 0x1000_0000;
const CTX_BYTES: u64 = 0x1000;

/// Below 4 GiB: the interpreter loads no more than the 32 bits of the field.
pub(super) const PACKET: u64 = 0x2000_0000;
pub(super) const PACKET_BYTES: u64 = 0x1_0000;

/// Where the packet starts at entry: metadata and room for a new head are below.
pub(super) const PACKET_START: u64 = PACKET + 0x100;
pub(super) const OBJECTS: u64 = 0x40_0000_0000;
pub(super) const OBJECT_BYTES: u64 = 0x10_0000;

/// Offsets of `data_meta` in `xdp_md` and `__sk_buff`.
pub(super) const XDP_META: i64 = 8;
pub(super) const SKB_META: i64 = 140;

/// Offset of `data` in `__sk_buff`.
pub(super) const SKB_DATA: i64 = 76;

/// What is where, for the words of a witness.
pub(super) struct Places(pub(super) Vec<(u64, String)>);

impl Places {
    pub(super) fn words(&self, address: u64) -> String {
        let object = |(start, name): &(u64, String)| {
            let off = address.checked_sub(*start).filter(|o| *o < OBJECT_BYTES)?;
            Some(format!("{name} + {off}"))
        };
        match address {
            a if (PACKET..PACKET + PACKET_BYTES).contains(&a) && a >= PACKET_START => {
                format!("packet[{}]", a - PACKET_START)
            }
            a if (PACKET..PACKET_START).contains(&a) => format!("packet[-{}]", PACKET_START - a),
            a if in_ctx(a) => format!("context[{}]", a - CTX),
            a => self.0.iter().find_map(object).unwrap_or_else(|| format!("{a:#x}")),
        }
    }
}

pub(super) fn in_packet(address: u64) -> bool {
    (PACKET..PACKET + PACKET_BYTES).contains(&address)
}

pub(super) fn in_ctx(address: u64) -> bool {
    (CTX..CTX + CTX_BYTES).contains(&address)
}

pub(super) fn low(v: u64, bits: u32) -> u64 {
    if bits >= 64 { v } else { v & ((1 << bits) - 1) }
}
