; object: public/es-cilium-examples-xdp_bpf_bpfel.o
; function: xdp_prog_func
; how: the element that is there comes next, with an end of its own
@ 17..31
    if r0 == 0 goto missed
    r1 = 1
    lock *(u32 *)(r0 + 0) += r1
    r0 = 2
    exit
missed:
    r1 = 1
    *(u32 *)(r10 - 8) = r1
    r2 = r10
    r2 += -4
    r3 = r10
    r3 += -8
    r1 = &xdp_stats_map
    r4 = 0
    call 2
