; rule: registers are written on all paths
; type: xdp
; kernel: R6 !read_ok

  r2 = *(u32 *)(r1 + 12)
  if r2 == 0 goto skip
  r6 = 1
skip:
  r0 = r6
  exit
