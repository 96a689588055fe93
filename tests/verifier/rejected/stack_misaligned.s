; rule: stack accesses are aligned to their width
; type: xdp
; kernel: misaligned stack access

  r1 = 0
  *(u64 *)(r10 - 12) = r1
  r0 = 0
  exit
