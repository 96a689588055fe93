; rule: some hooks need a number
; type: cgroup/connect4
; kernel: At program exit the register R0

  r0 = r1
  exit
