; rule: maps go with helpers
; type: xdp
; map: prog_array 4 4 4

  r2 = map_fd[0] ll
  r3 = 0
  call 12
  r0 = 0
  exit
