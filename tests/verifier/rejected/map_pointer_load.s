; rule: a map itself cannot be stored to
; type: xdp
; map: array 4 16 1

  r1 = map_fd[0] ll
  r2 = 0
  *(u32 *)(r1 + 0) = r2
  r0 = 0
  exit
