; rule: some sizes are not zero
; type: xdp
; kernel: invalid zero-sized read

  r2 = *(u32 *)(r1 + 12)
  if r2 > 16 goto out
  r1 = r10
  r1 += -16
  call 16
out:
  r0 = 0
  exit
