; rule: jumps stay inside
; type: xdp
; kernel: jump out of range

  r0 = 0
  goto +5
  exit
