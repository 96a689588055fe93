; rule: a mask must fit the value
; type: xdp
; map: array 4 16 1
; kernel: max value is outside

  r6 = r1
  *(u32 *)(r10 - 4) = 0
  r2 = r10
  r2 += -4
  r1 = map_fd[0] ll
  call 1
  if r0 == 0 goto out
  r2 = *(u32 *)(r6 + 12)
  r2 &= 31
  r0 += r2
  r1 = *(u8 *)(r0 + 0)
out:
  r0 = 0
  exit
