; rule: pointers are stored whole
; type: xdp

  *(u64 *)(r10 - 8) = r1
  r0 = 0
  exit
