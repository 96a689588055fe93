; object: k2/15-xdp_fw.o
; function: prog
; how: the key is put together in registers and stored in two whole words, which the helper's hash and comparison read at once
@ 0..64
    r3 = *(u32 *)(r1 + 4)
    r2 = *(u32 *)(r1 + 0)
    r6 = 1
    r4 = r2
    r4 += 14
    if r4 > r3 goto s70
    r5 = *(u16 *)(r2 + 12)
    if r5 != 8 goto s70
    r4 = r2
    r4 += 34
    if r4 > r3 goto s70
    r7 = *(u32 *)(r1 + 12)
    r1 = *(u8 *)(r2 + 23)
    if r1 == 17 goto known
    if r1 != 6 goto s70
known:
    r4 = r2
    r4 += 42
    if r4 > r3 goto s70
    r3 = *(u32 *)(r2 + 26)
    r4 = *(u32 *)(r2 + 30)
    r5 = *(u16 *)(r2 + 34)
    r2 = *(u16 *)(r2 + 36)
    if r4 >= r3 goto ordered
    r0 = r3
    r3 = r4
    r4 = r0
ordered:
    r4 <<= 32
    r4 |= r3
    *(u64 *)(r10 - 16) = r4
    if r2 >= r5 goto ports
    r0 = r2
    r2 = r5
    r5 = r0
ports:
    r5 <<= 16
    r1 |= r5
    r2 <<= 32
    r1 |= r2
    *(u64 *)(r10 - 24) = r1
    r2 = r10
    r2 += -24
    r1 = &flow_ctx_table
    call 1
    if r7 != 7 goto outside
    if r0 == 0 goto s70
    r2 = *(u8 *)(r0 + 0)
    r1 = &tx_port
    goto s67
outside:
    if r0 != 0 goto s64
    r1 = 0x70006
    *(u32 *)(r10 - 4) = r1
    r2 = r10
    r2 += -24
    r3 = r10
    r3 += -4
    r1 = &flow_ctx_table
    r4 = 0
    call 2
