; rule: no access below 512 bytes
; type: xdp

  r1 = 0
  *(u64 *)(r10 - 512) = r1
  r0 = 0
  exit
