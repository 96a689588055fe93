; rule: packet bytes need a bounds check
; type: xdp

  r2 = *(u32 *)(r1 + 0)
  r3 = *(u32 *)(r1 + 4)
  r4 = r2
  r4 += 1
  if r4 > r3 goto out
  r0 = *(u8 *)(r2 + 0)
out:
  r0 = 0
  exit
