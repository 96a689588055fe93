; rule: a socket is given back once
; type: classifier
; kernel: type=scalar expected=sock

  *(u64 *)(r10 - 8) = 0
  *(u64 *)(r10 - 16) = 0
  r2 = r10
  r2 += -16
  r3 = 12
  r4 = -1
  r5 = 0
  call 84
  if r0 == 0 goto out
  r6 = r0
  r1 = r0
  call 86
  r1 = r6
  call 86
out:
  r0 = 0
  exit
