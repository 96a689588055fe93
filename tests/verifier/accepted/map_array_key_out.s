; rule: an array lookup with a key out of range may find nothing
; type: xdp
; map: array 4 16 1

  *(u32 *)(r10 - 4) = 0
  r2 = r10
  r2 += -4
  r1 = map_fd[0] ll
  call 1
  r1 = *(u64 *)(r0 + 0)
  r0 = 0
  exit
