; rule: loops end before a million instructions
; type: xdp
; kernel: program is too large

  r2 = 0
  r0 = 0
top:
  r2 += 1
  if r2 != 2000000 goto top
  exit
