; rule: most helpers take no packet data
; type: xdp
; kernel: helper access to the packet is not allowed

  r2 = *(u32 *)(r1 + 0)
  r3 = *(u32 *)(r1 + 4)
  r4 = r2
  r4 += 16
  if r4 > r3 goto out
  r1 = r2
  r2 = 16
  call 16
out:
  r0 = 0
  exit
