; rule: shifts stay below the width
; type: xdp
; kernel: invalid shift

  r0 = 1
  w0 <<= 32
  exit
