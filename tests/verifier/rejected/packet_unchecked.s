; rule: packet bytes need a bounds check
; type: xdp
; kernel: invalid access to packet

  r2 = *(u32 *)(r1 + 0)
  r3 = *(u32 *)(r1 + 4)
  r0 = *(u8 *)(r2 + 0)
  r0 = 0
  exit
