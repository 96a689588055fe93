; rule: a bounded 64-bit index is not bounded by a 32-bit test of another register
; type: xdp
; map: array 4 16 1
; kernel: unbounded memory access

  r6 = r1
  *(u32 *)(r10 - 4) = 0
  r2 = r10
  r2 += -4
  r1 = map_fd[0] ll
  call 1
  if r0 == 0 goto out
  r2 = *(u32 *)(r6 + 12)
  r3 = r2
  r3 += 1
  r3 *= 3
  if w3 > 15 goto out
  r0 += r2
  r1 = *(u8 *)(r0 + 0)
out:
  r0 = 0
  exit
