; rule: arguments are written before a call
; type: xdp
; map: array 4 16 1
; kernel: R2 !read_ok

  r1 = map_fd[0] ll
  call 1
  r0 = 0
  exit
