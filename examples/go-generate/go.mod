module example.org/bpf-opt-example

go 1.24

require (
	github.com/cilium/ebpf v0.19.0 // indirect
	golang.org/x/sys v0.31.0 // indirect
)

tool github.com/cilium/ebpf/cmd/bpf2go
