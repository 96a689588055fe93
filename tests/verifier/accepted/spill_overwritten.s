; rule: a pointer whose bytes are overwritten is none
; type: xdp

  *(u64 *)(r10 - 8) = r1
  *(u8 *)(r10 - 16) = 0
  r2 = *(u64 *)(r10 - 8)
  r0 = *(u32 *)(r2 + 0)
  r0 = 0
  exit
