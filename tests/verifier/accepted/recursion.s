; rule: calls are at most eight frames deep
; type: xdp

  call pc+2
  r0 = 0
  exit
  r0 = 0
  exit
