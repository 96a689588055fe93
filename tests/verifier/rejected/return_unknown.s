; rule: some hooks need a known result
; type: cgroup/connect4
; kernel: At program exit the register R0

  r0 = *(u32 *)(r1 + 0)
  exit
