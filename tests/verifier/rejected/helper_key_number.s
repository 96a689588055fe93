; rule: a key is memory
; type: xdp
; map: array 4 16 1
; kernel: type=scalar expected=fp

  r2 = 4
  r1 = map_fd[0] ll
  call 1
  r0 = 0
  exit
