; rule: context accesses stay inside
; type: xdp

  r0 = *(u32 *)(r1 + 16)
  r0 = 0
  exit
