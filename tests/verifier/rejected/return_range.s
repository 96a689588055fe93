; rule: some hooks take 0 and 1 only
; type: cgroup/connect4
; kernel: At program exit the register R0

  r0 = 2
  exit
