; rule: no lookups in program arrays
; type: xdp
; map: prog_array 4 4 1
; kernel: cannot pass map_type

  *(u32 *)(r10 - 4) = 0
  r2 = r10
  r2 += -4
  r1 = map_fd[0] ll
  call 1
  r0 = 0
  exit
