; object: public/es-build-packet_access.o
; function: test_packet_access
; how: both sides of the question do the same
@ 2..27
    r0 <<= 2
    r0 &= 60
    r1 = *(u32 *)(r6 + 0)
    r1 += r0
    r0 = 1
    r2 = r1
    r2 += 4
    r3 = *(u32 *)(r6 + 4)
    if r2 > r3 goto s27
    r0 = *(u32 *)(r1 + 0)
