; rule: helpers that move the packet end its pointers
; type: xdp

  r6 = r1
  r2 = 4
  call 44
  r7 = *(u32 *)(r6 + 0)
  r3 = *(u32 *)(r6 + 4)
  r4 = r7
  r4 += 8
  if r4 > r3 goto out
  r0 = *(u8 *)(r7 + 0)
out:
  r0 = 0
  exit
