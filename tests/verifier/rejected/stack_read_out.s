; rule: no load below 512 bytes
; type: xdp
; kernel: invalid read from stack

  r0 = *(u8 *)(r10 - 513)
  r0 = 0
  exit
