; rule: exit needs a result
; type: xdp

  r0 = 0
  exit
