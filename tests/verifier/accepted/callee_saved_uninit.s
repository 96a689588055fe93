; rule: a callee does not see r6 to r9
; type: xdp

  r1 = 1
  call pc+2
  r0 = 0
  exit
  r0 = r1
  exit
