; rule: XDP takes anything from a privileged loader
; type: xdp

  r0 = r1
  exit
