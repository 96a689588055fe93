; rule: no masks on pointers
; type: xdp
; kernel: bitwise operator &= on pointer prohibited

  r2 = r10
  r2 &= -8
  r0 = 0
  exit
