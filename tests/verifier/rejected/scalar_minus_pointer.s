; rule: no subtraction of pointers from numbers
; type: xdp
; kernel: tried to subtract pointer from scalar

  r2 = 8
  r2 -= r1
  r0 = 0
  exit
