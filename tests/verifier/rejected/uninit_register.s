; rule: registers are written before they are read
; type: xdp
; kernel: R2 !read_ok

  r0 = r2
  exit
