; rule: numbers are no addresses
; type: xdp
; kernel: invalid mem access 'scalar'

  r1 = 4096 ll
  r0 = *(u64 *)(r1 + 0)
  r0 = 0
  exit
