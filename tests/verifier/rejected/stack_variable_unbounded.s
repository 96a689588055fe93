; rule: a variable stack offset needs bounds
; type: xdp
; kernel: unbounded min value

  r2 = *(u32 *)(r1 + 12)
  r2 <<= 32
  r2 <<= 1
  r3 = r10
  r3 += r2
  r0 = *(u8 *)(r3 - 8)
  r0 = 0
  exit
