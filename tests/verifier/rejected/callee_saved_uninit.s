; rule: a callee does not see r6 to r9
; type: xdp
; kernel: R6 !read_ok

  r6 = 1
  call pc+2
  r0 = 0
  exit
  r0 = r6
  exit
