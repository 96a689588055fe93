; rule: read-only fields are not written
; type: classifier
; kernel: invalid bpf_context access

  r2 = 0
  *(u32 *)(r1 + 0) = r2
  r0 = 0
  exit
