; rule: no division by the constant zero
; type: xdp

  r0 = 1
  r1 = 0
  r0 /= r1
  exit
