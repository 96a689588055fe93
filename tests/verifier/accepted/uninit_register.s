; rule: registers are written before they are read
; type: xdp

  r2 = 0
  r0 = r2
  exit
