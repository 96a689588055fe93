; rule: no variable context offsets
; type: classifier
; kernel: variable ctx access

  r2 = *(u32 *)(r1 + 0)
  r2 &= 4
  r1 += r2
  r0 = *(u32 *)(r1 + 0)
  r0 = 0
  exit
