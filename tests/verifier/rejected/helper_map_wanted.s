; rule: a map argument is a map
; type: xdp
; kernel: expected=map_ptr

  *(u32 *)(r10 - 4) = 0
  r2 = r10
  r2 += -4
  r1 = 1
  call 1
  r0 = 0
  exit
