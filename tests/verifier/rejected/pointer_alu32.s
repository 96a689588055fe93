; rule: no 32-bit arithmetic on pointers
; type: xdp
; kernel: 32-bit pointer arithmetic prohibited

  r2 = r10
  w2 += 4
  r0 = 0
  exit
