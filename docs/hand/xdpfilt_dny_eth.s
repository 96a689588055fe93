; object: farm-debian/xdpfilt_dny_eth.o
; function: xdpfilt_dny_eth
; how: each address by two loads
@ 8..24
    r1 = *(u16 *)(r8 + 4)
    *(u16 *)(r10 - 8) = r1
    r3 = *(u32 *)(r8 + 0)
    *(u32 *)(r10 - 12) = r3
@ 34..50
    r1 = *(u16 *)(r8 + 10)
    *(u16 *)(r10 - 8) = r1
    r3 = *(u32 *)(r8 + 6)
    *(u32 *)(r10 - 12) = r3
