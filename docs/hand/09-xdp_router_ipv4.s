; object: k2/09-xdp_router_ipv4.o
; function: prog
; how: the ether type by one load, no store of what is stored over, addresses copied as four and two bytes, the order of the usual way
@ 6..10
    r3 = *(u16 *)(r7 + 12)
@ 48..52
    r1 = *(u32 *)(r10 - 16)
    r1 <<= 32
    r1 |= 32
    *(u64 *)(r10 - 8) = r1
@ 78..90
    r1 = *(u16 *)(r0 + 4)
    *(u16 *)(r7 + 4) = r1
    r1 = *(u32 *)(r0 + 0)
    *(u32 *)(r7 + 0) = r1
    r1 = *(u32 *)(r2 + 0)
    *(u32 *)(r7 + 6) = r1
    r1 = *(u16 *)(r2 + 4)
    *(u16 *)(r7 + 10) = r1
