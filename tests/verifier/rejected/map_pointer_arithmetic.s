; rule: no arithmetic on maps
; type: xdp
; map: array 4 16 1
; kernel: pointer arithmetic on map_ptr prohibited

  r1 = map_fd[0] ll
  r1 += 8
  r0 = 0
  exit
