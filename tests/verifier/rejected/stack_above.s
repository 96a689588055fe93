; rule: no access above the frame pointer
; type: xdp
; kernel: invalid write to stack

  r1 = 0
  *(u64 *)(r10 + 8) = r1
  r0 = 0
  exit
