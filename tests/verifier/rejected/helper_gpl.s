; rule: some helpers are for GPL programs
; type: xdp
; license: Proprietary
; kernel: cannot call GPL-restricted function

  *(u64 *)(r10 - 8) = 0
  r1 = r10
  r1 += -8
  r2 = 8
  call 6
  r0 = 0
  exit
