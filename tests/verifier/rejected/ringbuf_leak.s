; rule: reservations are given back
; type: xdp
; map: ringbuf 0 0 4096
; kernel: Unreleased reference

  r1 = map_fd[0] ll
  r2 = 8
  r3 = 0
  call 131
  r0 = 0
  exit
