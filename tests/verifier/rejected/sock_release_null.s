; rule: only a found socket is given back
; type: classifier
; kernel: type=sock_or_null

  *(u64 *)(r10 - 8) = 0
  *(u64 *)(r10 - 16) = 0
  r2 = r10
  r2 += -16
  r3 = 12
  r4 = -1
  r5 = 0
  call 84
  r1 = r0
  call 86
  r0 = 0
  exit
