; rule: reservations are given back
; type: xdp
; map: ringbuf 0 0 4096

  r1 = map_fd[0] ll
  r2 = 8
  r3 = 0
  call 131
  if r0 == 0 goto out
  r1 = r0
  r2 = 0
  call 133
out:
  r0 = 0
  exit
