; rule: no subtraction from the frame pointer
; type: xdp
; kernel: subtraction from stack pointer prohibited

  r2 = *(u32 *)(r1 + 12)
  r2 &= 7
  r3 = r10
  r3 -= r2
  r0 = 0
  exit
