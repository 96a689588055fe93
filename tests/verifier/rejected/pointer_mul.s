; rule: no multiplication of pointers
; type: xdp
; kernel: pointer arithmetic with *= operator prohibited

  r1 *= 2
  r0 = 0
  exit
