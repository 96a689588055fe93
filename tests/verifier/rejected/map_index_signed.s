; rule: an index needs a lower bound
; type: xdp
; map: array 4 16 1
; kernel: pointer be out of bounds

  r6 = r1
  *(u32 *)(r10 - 4) = 0
  r2 = r10
  r2 += -4
  r1 = map_fd[0] ll
  call 1
  if r0 == 0 goto out
  r2 = *(u32 *)(r6 + 12)
  r2 <<= 32
  r2 s>>= 32
  if r2 s> 15 goto out
  r0 += r2
  r1 = *(u8 *)(r0 + 0)
out:
  r0 = 0
  exit
