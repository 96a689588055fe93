; rule: legacy packet loads are for socket filters and tc
; type: xdp
; kernel: not allowed for this program type

  r6 = r1
  r0 = *(u8 *)skb[0]
  exit
