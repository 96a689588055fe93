; rule: no atomics on packet data
; type: xdp
; kernel: BPF_ATOMIC stores into

  r2 = *(u32 *)(r1 + 0)
  r3 = *(u32 *)(r1 + 4)
  r4 = r2
  r4 += 8
  if r4 > r3 goto out
  r5 = 1
  lock *(u32 *)(r2 + 0) += r5
out:
  r0 = 0
  exit
