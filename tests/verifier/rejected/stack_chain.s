; rule: all frames of a call chain share 512 bytes
; type: xdp
; kernel: combined stack size

  *(u64 *)(r10 - 304) = 0
  call pc+2
  r0 = 0
  exit
  *(u64 *)(r10 - 304) = 0
  r0 = 0
  exit
