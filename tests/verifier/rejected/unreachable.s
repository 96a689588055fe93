; rule: all code is reachable
; type: xdp
; kernel: unreachable insn

  r0 = 0
  exit
  r0 = 1
  exit
