; rule: loops end before a million instructions
; type: xdp

  r2 = 0
  r0 = 0
top:
  r2 += 1
  if r2 != 1000 goto top
  exit
