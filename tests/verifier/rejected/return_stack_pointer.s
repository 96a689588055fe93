; rule: a function does not return a stack address
; type: xdp
; kernel: cannot return stack pointer

  call pc+2
  r0 = 0
  exit
  r0 = r10
  exit
