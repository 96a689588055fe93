; rule: no access before the packet
; type: xdp
; kernel: invalid access to packet

  r2 = *(u32 *)(r1 + 0)
  r3 = *(u32 *)(r1 + 4)
  r4 = r2
  r4 += 8
  if r4 > r3 goto out
  r0 = *(u8 *)(r2 - 1)
out:
  r0 = 0
  exit
