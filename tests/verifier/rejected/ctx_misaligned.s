; rule: context accesses are aligned
; type: classifier
; kernel: invalid bpf_context access

  r0 = *(u32 *)(r1 + 2)
  r0 = 0
  exit
