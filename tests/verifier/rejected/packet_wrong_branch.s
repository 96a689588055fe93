; rule: the bounds check holds on one side only
; type: xdp
; kernel: invalid access to packet

  r2 = *(u32 *)(r1 + 0)
  r3 = *(u32 *)(r1 + 4)
  r4 = r2
  r4 += 4
  if r4 > r3 goto out
  r0 = 0
  exit
out:
  r0 = *(u8 *)(r2 + 0)
  r0 = 0
  exit
