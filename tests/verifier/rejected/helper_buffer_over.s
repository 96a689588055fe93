; rule: a buffer is as long as its size says
; type: xdp
; kernel: invalid write to stack

  r1 = r10
  r1 += -16
  r2 = 24
  call 16
  r0 = 0
  exit
