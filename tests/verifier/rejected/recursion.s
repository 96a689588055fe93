; rule: calls are at most eight frames deep
; type: xdp
; kernel: too deep

  call pc+2
  r0 = 0
  exit
  call pc-1
  r0 = 0
  exit
