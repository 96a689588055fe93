; rule: loops end
; type: xdp

  r2 = 0
  r0 = 0
top:
  r2 += 1
  if r2 != 7 goto top
  exit
