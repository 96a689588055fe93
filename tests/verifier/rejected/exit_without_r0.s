; rule: exit needs a result
; type: xdp
; kernel: R0 !read_ok

  exit
