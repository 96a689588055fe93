; rule: a lookup may find nothing
; type: xdp
; map: hash 4 16 1
; kernel: invalid mem access 'map_value_or_null'

  *(u32 *)(r10 - 4) = 0
  r2 = r10
  r2 += -4
  r1 = map_fd[0] ll
  call 1
  r1 = *(u64 *)(r0 + 0)
  r0 = 0
  exit
