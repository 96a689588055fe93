; rule: calls clobber r1 to r5
; type: xdp

  r6 = r1
  call 5
  r0 = *(u32 *)(r6 + 0)
  r0 = 0
  exit
