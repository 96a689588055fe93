; rule: helpers that move the packet end its pointers
; type: xdp
; kernel: R7 invalid mem access 'scalar'

  r2 = *(u32 *)(r1 + 0)
  r3 = *(u32 *)(r1 + 4)
  r6 = r1
  r7 = r2
  r4 = r2
  r4 += 8
  if r4 > r3 goto out
  r2 = 4
  call 44
  r0 = *(u8 *)(r7 + 0)
out:
  r0 = 0
  exit
