; rule: r10 is read-only
; type: xdp
; kernel: frame pointer is read only

  r10 = 0
  r0 = 0
  exit
