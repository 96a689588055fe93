; rule: a callee stores no address of its own frame in the frame of its caller
; type: xdp

  r2 = r1
  r1 = r10
  r1 += -8
  call pc+2
  r0 = 0
  exit
  *(u64 *)(r1 + 0) = r2
  r0 = 0
  exit
