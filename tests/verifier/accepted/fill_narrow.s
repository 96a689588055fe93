; rule: stored pointers are loaded whole
; type: xdp

  *(u64 *)(r10 - 8) = r1
  r0 = *(u64 *)(r10 - 8)
  r0 = 0
  exit
