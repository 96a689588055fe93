; rule: some hooks need a known result
; type: cgroup/connect4

  r0 = *(u32 *)(r1 + 0)
  r0 &= 1
  exit
