; rule: read-only fields are not written
; type: classifier

  r2 = 0
  *(u32 *)(r1 + 8) = r2
  r0 = 0
  exit
