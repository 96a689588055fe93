// Loads the object that `go generate` has made, runs it on one packet, and looks into its map. It attaches nothing.
//
// Exit codes: 0 the packet was counted; 1 it was not, or the object does not load; 77 no right to load programs here.
package main

import (
	"errors"
	"fmt"
	"os"
)

// bpf2go compiles the program and writes code that embeds the object, which then becomes smaller in its place. The same bytes
// on every machine, quickly; `-O2` finds more.
//go:generate go tool bpf2go -target bpfel -cflags "-O2 -g -mcpu=v3" counter ../xdp_count.c
//go:generate bpf-opt opt -O1 --no-cache --no-kernel --min-kernel 6.1 -q counter_bpfel.o -o counter_bpfel.o

const udp = uint32(17)

func main() {
	if err := count(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		if errors.Is(err, os.ErrPermission) {
			os.Exit(77)
		}
		os.Exit(1)
	}
}

func count() error {
	var objects counterObjects
	if err := loadCounterObjects(&objects, nil); err != nil {
		return err
	}
	defer objects.Close()
	// Ethernet and IPv4 with UDP inside.
	packet := make([]byte, 64)
	packet[12], packet[14], packet[17], packet[23] = 0x08, 0x45, 50, 17
	returned, _, err := objects.XdpCount.Test(packet)
	if err != nil {
		return err
	}
	var value counterCount
	if err := objects.Counters.Lookup(udp, &value); err != nil {
		return err
	}
	fmt.Printf("returned %d, counted %d packets of %d bytes\n", returned, value.Packets, value.Bytes)
	if value.Packets != 1 || value.Bytes != 64 {
		return errors.New("the packet was not counted")
	}
	return nil
}
