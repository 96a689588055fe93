; rule: a reservation has a constant size
; type: xdp
; map: ringbuf 0 0 4096
; kernel: is not a known constant

  r2 = *(u32 *)(r1 + 12)
  r2 &= 8
  r1 = map_fd[0] ll
  r3 = 0
  call 131
  r0 = 0
  exit
