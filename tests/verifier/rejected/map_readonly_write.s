; rule: a read-only map is not written
; type: xdp
; map: array 4 16 1 128
; kernel: write into map forbidden

  *(u32 *)(r10 - 4) = 0
  r2 = r10
  r2 += -4
  r1 = map_fd[0] ll
  call 1
  if r0 == 0 goto out
  r1 = 0
  *(u64 *)(r0 + 0) = r1
out:
  r0 = 0
  exit
