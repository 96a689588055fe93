; rule: a map value is as long as a size says
; type: xdp
; map: array 4 16 1

  *(u32 *)(r10 - 4) = 0
  r2 = r10
  r2 += -4
  r1 = map_fd[0] ll
  call 1
  if r0 == 0 goto out
  r1 = r0
  r2 = 16
  call 16
out:
  r0 = 0
  exit
