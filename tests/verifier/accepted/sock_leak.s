; rule: sockets are given back
; type: classifier

  *(u64 *)(r10 - 8) = 0
  *(u64 *)(r10 - 16) = 0
  r2 = r10
  r2 += -16
  r3 = 12
  r4 = -1
  r5 = 0
  call 84
  if r0 == 0 goto out
  r1 = r0
  call 86
out:
  r0 = 0
  exit
