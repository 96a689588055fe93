; rule: not every helper is for every type
; type: classifier

  r2 = 0
  call 39
  r0 = 0
  exit
