; rule: legacy packet loads are for socket filters and tc
; type: socket

  r6 = r1
  r0 = *(u8 *)skb[0]
  exit
