; rule: a size is not negative
; type: xdp
; kernel: min value is negative

  r2 = *(u32 *)(r1 + 12)
  r2 <<= 32
  r2 s>>= 32
  if r2 s> 16 goto out
  r1 = r10
  r1 += -16
  call 16
out:
  r0 = 0
  exit
