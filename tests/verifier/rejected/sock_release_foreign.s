; rule: only what was taken is given back
; type: classifier
; kernel: must be referenced

  r1 = *(u64 *)(r1 + 168)
  if r1 == 0 goto out
  call 86
out:
  r0 = 0
  exit
