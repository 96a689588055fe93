; rule: a reservation has its size
; type: xdp
; map: ringbuf 0 0 4096
; kernel: invalid access to memory

  r1 = map_fd[0] ll
  r2 = 8
  r3 = 0
  call 131
  if r0 == 0 goto out
  r6 = r0
  r1 = 0
  *(u32 *)(r6 + 8) = r1
  r1 = r6
  r2 = 0
  call 132
out:
  r0 = 0
  exit
