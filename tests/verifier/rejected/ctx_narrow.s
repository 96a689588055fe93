; rule: XDP fields are read whole
; type: xdp
; kernel: invalid bpf_context access

  r0 = *(u16 *)(r1 + 12)
  r0 = 0
  exit
