; rule: the end of the packet is no address to load from
; type: xdp
; kernel: invalid mem access 'pkt_end'

  r2 = *(u32 *)(r1 + 0)
  r3 = *(u32 *)(r1 + 4)
  r0 = *(u8 *)(r3 + 0)
  r0 = 0
  exit
