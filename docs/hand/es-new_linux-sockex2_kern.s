; object: public/es-new_linux-sockex2_kern.o
; function: bpf_prog2
; how: one load of four bytes instead of two calls for the fragment's offset and the protocol; what fails then fails a load later anyway
@ 92..105
    r8 = r7
    r8 += 6
    r0 = *(u32 *)skb[r8]
    r1 = r0
    r1 >>= 16
    r1 &= 0x3fff
    r9 = 0
    if r1 != 0 goto s105
    r9 = r0
    r9 &= 0xff
    r8 = 47
    r0 = 0
    if r9 == 47 goto s109
