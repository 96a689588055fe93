; rule: no access below 512 bytes
; type: xdp
; kernel: invalid write to stack

  r1 = 0
  *(u64 *)(r10 - 520) = r1
  r0 = 0
  exit
