; rule: context accesses stay inside
; type: xdp
; kernel: invalid bpf_context access

  r0 = *(u32 *)(r1 + 24)
  r0 = 0
  exit
