; rule: no 32-bit arithmetic on pointers
; type: xdp

  r2 = r10
  r2 += -4
  r0 = 0
  exit
