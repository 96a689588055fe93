; rule: helpers exist
; type: xdp
; kernel: invalid func

  call 9999
  r0 = 0
  exit
