; rule: stored pointers are loaded whole
; type: xdp
; kernel: invalid size of register fill

  *(u64 *)(r10 - 8) = r1
  r0 = *(u32 *)(r10 - 8)
  r0 = 0
  exit
