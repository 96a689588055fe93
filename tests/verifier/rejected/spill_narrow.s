; rule: pointers are stored whole
; type: xdp
; kernel: invalid size of register spill

  *(u32 *)(r10 - 8) = r1
  r0 = 0
  exit
