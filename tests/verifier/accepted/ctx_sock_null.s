; rule: the socket of a packet may be missing
; type: classifier

  r1 = *(u64 *)(r1 + 168)
  if r1 == 0 goto out
  r0 = *(u32 *)(r1 + 4)
out:
  r0 = 0
  exit
