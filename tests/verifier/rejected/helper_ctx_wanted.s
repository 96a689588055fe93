; rule: a context argument is the context
; type: xdp
; kernel: expected=ctx

  r1 = 0
  r2 = 4
  call 44
  r0 = 0
  exit
