; object: k2/17-from-network.o
; function: prog
; how: no store of what is stored over
@ 2..7
    r1 = 259
    *(u64 *)(r10 - 24) = r1
