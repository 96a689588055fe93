module example.org/bpf-opt-legacy

go 1.24

require (
	github.com/cilium/ebpf v0.19.0
	golang.org/x/sys v0.31.0 // indirect
)
