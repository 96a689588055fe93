; object: public/es-suricata-xdp_filter.o
; function: xdp_hashfilter
; how: the ether type by one load
@ 6..10
    r2 = *(u16 *)(r7 + 12)
