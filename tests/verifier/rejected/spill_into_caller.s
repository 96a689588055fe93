; rule: a callee stores no address of its own frame in the frame of its caller
; type: xdp
; kernel: cannot spill pointers to stack into stack frame

  r1 = r10
  r1 += -8
  call pc+2
  r0 = 0
  exit
  *(u64 *)(r1 + 0) = r10
  r0 = 0
  exit
