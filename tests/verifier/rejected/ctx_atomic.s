; rule: no atomics on the context
; type: classifier
; kernel: BPF_ATOMIC stores into

  r2 = 1
  lock *(u32 *)(r1 + 48) += r2
  r0 = 0
  exit
