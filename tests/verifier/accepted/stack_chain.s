; rule: all frames of a call chain share 512 bytes
; type: xdp

  *(u64 *)(r10 - 256) = 0
  call pc+2
  r0 = 0
  exit
  *(u64 *)(r10 - 256) = 0
  r0 = 0
  exit
