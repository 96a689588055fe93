; rule: the first eight bytes of a tracepoint are not for programs
; type: tracepoint/x/y
; kernel: invalid bpf_context access

  r0 = *(u64 *)(r1 + 0)
  r0 = 0
  exit
