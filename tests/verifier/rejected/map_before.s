; rule: accesses stay inside the value, below too
; type: xdp
; map: array 4 16 1
; kernel: invalid access to map value

  *(u32 *)(r10 - 4) = 0
  r2 = r10
  r2 += -4
  r1 = map_fd[0] ll
  call 1
  if r0 == 0 goto out
  r1 = *(u8 *)(r0 - 1)
out:
  r0 = 0
  exit
