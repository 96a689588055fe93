//! Contexts as test runs begin with them.

use bpf_program::ByteOrder;

/// Bytes of `struct __sk_buff`.
const SKB_BYTES: usize = 192;

pub(super) const ETH_HLEN: usize = 14;

/// `struct xdp_md` in a test run: the packet came in on the loopback device.
pub(super) fn xdp_context(order: ByteOrder) -> Vec<u8> {
    let mut context = vec![0; 24];
    context[12..16].copy_from_slice(&order.bytes(1, 4)[..4]);
    context
}

/// `struct __sk_buff` of a classifier in a test run (`net/bpf/test_run.c`, `eth_type_trans`).
pub(super) fn skb_context(order: ByteOrder, packet: &[u8]) -> Vec<u8> {
    const LEN: usize = 0;
    const PKT_TYPE: usize = 4;
    const PROTOCOL: usize = 16;
    const IFINDEX: usize = 40;
    const MULTICAST: u32 = 2;
    const OTHER_HOST: u32 = 3;
    let mut context = vec![0; SKB_BYTES];
    let mut put = |at: usize, v: u32| context[at..at + 4].copy_from_slice(&order.bytes(v.into(), 4)[..4]);
    put(LEN, packet.len() as u32);
    put(IFINDEX, 1);
    if let Some(header) = packet.first_chunk::<ETH_HLEN>() {
        let to = &header[..6];
        // The loopback device's own and broadcast address are zero.
        let pkt_type = match to {
            [0, 0, 0, 0, 0, 0] => 0,
            [first, ..] if first & 1 == 1 => MULTICAST,
            _ => OTHER_HOST,
        };
        put(PKT_TYPE, pkt_type);
        let wire = [header[12], header[13]];
        let protocol = match u16::from_be_bytes(wire) {
            0x600.. => wire,
            _ if packet.get(14..16) == Some(&[0xff, 0xff]) => [0, 1],
            _ => [0, 4],
        };
        put(PROTOCOL, order.number(&protocol) as u32);
    }
    context
}
