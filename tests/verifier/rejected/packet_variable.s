; rule: a variable packet offset needs a check of its own
; type: xdp
; kernel: invalid access to packet

  r2 = *(u32 *)(r1 + 0)
  r3 = *(u32 *)(r1 + 4)
  r4 = r2
  r4 += 8
  if r4 > r3 goto out
  r5 = *(u8 *)(r2 + 0)
  r2 += r5
  r0 = *(u8 *)(r2 + 0)
out:
  r0 = 0
  exit
