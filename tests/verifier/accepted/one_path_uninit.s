; rule: registers are written on all paths
; type: xdp

  r2 = *(u32 *)(r1 + 12)
  r6 = 0
  if r2 == 0 goto skip
  r6 = 1
skip:
  r0 = r6
  exit
