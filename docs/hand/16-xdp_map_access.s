; object: k2/16-xdp_map_access.o
; function: prog
; how: the key is stored once
@ 2..10
    r1 += 14
    if r1 > r2 goto s28
    r3 = 1
    *(u64 *)(r10 - 16) = r3
    r1 = 23
    *(u8 *)(r10 - 8) = r1
