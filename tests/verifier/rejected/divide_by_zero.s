; rule: no division by the constant zero
; type: xdp
; kernel: div by zero

  r0 = 1
  r0 /= 0
  exit
