; rule: a context argument is the context
; type: xdp

  r2 = 4
  call 44
  r0 = 0
  exit
