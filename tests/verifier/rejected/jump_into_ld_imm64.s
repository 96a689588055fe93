; rule: jumps hit instructions
; type: xdp
; kernel: jump into the middle

  r2 = *(u32 *)(r1 + 12)
  if r2 == 0 goto +1
  r0 = 1 ll
  r0 = 0
  exit
