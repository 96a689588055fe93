; rule: the bounds check must cover the access
; type: xdp

  r2 = *(u32 *)(r1 + 0)
  r3 = *(u32 *)(r1 + 4)
  r4 = r2
  r4 += 14
  if r4 > r3 goto out
  r0 = *(u16 *)(r2 + 12)
out:
  r0 = 0
  exit
