; rule: code ends with an exit
; type: xdp
; kernel: last insn is not an exit or jmp

  r0 = 0
