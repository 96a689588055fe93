; rule: a size is not negative
; type: xdp

  r2 = *(u32 *)(r1 + 12)
  if r2 > 16 goto out
  if r2 == 0 goto out
  r1 = r10
  r1 += -16
  call 16
out:
  r0 = 0
  exit
