; rule: a key lies on the stack whole
; type: xdp
; map: array 4 16 1
; kernel: invalid read from stack

  r2 = r10
  r2 += -2
  r1 = map_fd[0] ll
  call 1
  r0 = 0
  exit
