; rule: XDP fields are read whole
; type: xdp

  r0 = *(u32 *)(r1 + 12)
  r0 = 0
  exit
