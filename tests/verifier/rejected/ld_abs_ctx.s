; rule: legacy packet loads want the context in r6
; type: socket
; kernel: R6 != pointer to skb

  r6 = 0
  r0 = *(u8 *)skb[0]
  exit
