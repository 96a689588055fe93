; rule: maps go with helpers
; type: xdp
; map: array 4 16 1
; kernel: expected prog array map

  r2 = map_fd[0] ll
  r3 = 0
  call 12
  r0 = 0
  exit
