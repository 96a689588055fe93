; rule: some hooks take 0 and 1 only
; type: cgroup/connect4

  r0 = 1
  exit
