; rule: the first eight bytes of a tracepoint are not for programs
; type: tracepoint/x/y

  r0 = *(u64 *)(r1 + 8)
  r0 = 0
  exit
