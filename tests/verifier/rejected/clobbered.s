; rule: calls clobber r1 to r5
; type: xdp
; kernel: R1 !read_ok

  call 5
  r0 = *(u32 *)(r1 + 0)
  r0 = 0
  exit
