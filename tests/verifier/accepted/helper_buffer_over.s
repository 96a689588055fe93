; rule: a buffer is as long as its size says
; type: xdp

  r1 = r10
  r1 += -24
  r2 = 24
  call 16
  r0 = 0
  exit
