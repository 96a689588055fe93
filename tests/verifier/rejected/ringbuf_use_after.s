; rule: what is given back is gone
; type: xdp
; map: ringbuf 0 0 4096
; kernel: R7 invalid mem access 'scalar'

  r1 = map_fd[0] ll
  r2 = 8
  r3 = 0
  call 131
  if r0 == 0 goto out
  r7 = r0
  r1 = r0
  r2 = 0
  call 132
  r0 = *(u64 *)(r7 + 0)
out:
  r0 = 0
  exit
