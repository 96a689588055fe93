; rule: the context is accessed at its own address
; type: classifier
; kernel: dereference of modified ctx ptr

  r1 += 4
  r0 = *(u32 *)(r1 + 0)
  r0 = 0
  exit
