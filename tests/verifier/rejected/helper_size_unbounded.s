; rule: a size has a bound
; type: xdp
; kernel: unbounded memory access

  r2 = *(u32 *)(r1 + 12)
  if r2 == 0 goto out
  r1 = r10
  r1 += -16
  call 16
out:
  r0 = 0
  exit
