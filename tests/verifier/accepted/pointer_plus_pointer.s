; rule: no sums of pointers
; type: xdp

  r2 = r10
  r2 -= r1
  r0 = 0
  exit
