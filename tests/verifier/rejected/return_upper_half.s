; rule: the whole of the result must be in range, though the hook reads an int
; type: cgroup/connect4
; kernel: At program exit the register R0

  r0 = *(u32 *)(r1 + 0)
  r0 %= 3
  if w0 > 1 goto out
  exit
out:
  r0 = 0
  exit
