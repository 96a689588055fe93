; rule: cgroup programs do not write packets
; type: cgroup_skb/ingress
; kernel: cannot write into packet

  r2 = *(u32 *)(r1 + 76)
  r3 = *(u32 *)(r1 + 80)
  r4 = r2
  r4 += 1
  if r4 > r3 goto out
  r5 = 0
  *(u8 *)(r2 + 0) = r5
out:
  r0 = 1
  exit
