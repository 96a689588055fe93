; rule: not every helper is for every type
; type: classifier
; kernel: program of this type cannot use helper

  r2 = 0
  call 44
  r0 = 0
  exit
