; rule: loops end
; type: xdp
; kernel: infinite loop detected

  r2 = *(u32 *)(r1 + 12)
  r0 = 0
top:
  if r2 == 7 goto out
  goto top
out:
  exit
