; rule: the context is accessed at its own address
; type: classifier

  r0 = *(u32 *)(r1 + 4)
  r0 = 0
  exit
