; rule: no arithmetic on the end of the packet
; type: xdp

  r2 = *(u32 *)(r1 + 0)
  r3 = *(u32 *)(r1 + 4)
  r2 += 1
  r0 = 0
  exit
