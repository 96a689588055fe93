; rule: no arithmetic before the null check
; type: xdp
; map: hash 4 16 1

  *(u32 *)(r10 - 4) = 0
  r2 = r10
  r2 += -4
  r1 = map_fd[0] ll
  call 1
  if r0 == 0 goto out
  r0 += 8
  r1 = *(u64 *)(r0 + 0)
out:
  r0 = 0
  exit
