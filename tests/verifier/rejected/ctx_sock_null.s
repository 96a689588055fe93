; rule: the socket of a packet may be missing
; type: classifier
; kernel: invalid mem access 'sock_common_or_null'

  r1 = *(u64 *)(r1 + 168)
  r0 = *(u32 *)(r1 + 4)
  r0 = 0
  exit
