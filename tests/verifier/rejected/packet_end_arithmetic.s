; rule: no arithmetic on the end of the packet
; type: xdp
; kernel: pointer arithmetic on pkt_end prohibited

  r2 = *(u32 *)(r1 + 0)
  r3 = *(u32 *)(r1 + 4)
  r3 += 1
  r0 = 0
  exit
