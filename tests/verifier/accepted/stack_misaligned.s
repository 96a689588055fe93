; rule: stack accesses are aligned to their width
; type: xdp

  r1 = 0
  *(u64 *)(r10 - 16) = r1
  r0 = 0
  exit
