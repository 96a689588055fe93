; rule: a variable stack offset must stay on the stack
; type: xdp
; kernel: invalid variable-offset

  r2 = *(u32 *)(r1 + 12)
  r2 &= 31
  r3 = r10
  r3 += -16
  r3 += r2
  r1 = 0
  *(u8 *)(r3 + 0) = r1
  r0 = 0
  exit
