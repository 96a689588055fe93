; rule: shifts stay below the width
; type: xdp

  r0 = 1
  r0 <<= 32
  exit
