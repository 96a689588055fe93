; rule: metadata is checked against the packet start
; type: xdp
; kernel: invalid access to packet

  r2 = *(u32 *)(r1 + 8)
  r3 = *(u32 *)(r1 + 4)
  r4 = r2
  r4 += 4
  if r4 > r3 goto out
  r0 = *(u32 *)(r2 + 0)
out:
  r0 = 0
  exit
