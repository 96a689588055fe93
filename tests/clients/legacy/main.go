// Loads an object with maps in the old form, which libbpf 1.0 no longer takes, runs its program on packets and prints its map.
//
//	legacy FILE.o
package main

import (
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/cilium/ebpf"
)

func main() {
	spec, err := ebpf.LoadCollectionSpec(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	// Its section, `prog`, tells no type.
	spec.Programs["legacy"].Type = ebpf.XDP
	objects, err := ebpf.NewCollection(spec)
	if errors.Is(err, os.ErrPermission) {
		os.Exit(77)
	} else if err != nil {
		log.Fatal(err)
	}
	defer objects.Close()
	for range 3 {
		verdict, _, err := objects.Programs["legacy"].Test(make([]byte, 64))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("returned", verdict)
	}
	for key := uint32(0); key < 2; key++ {
		var counts []uint64
		if err := objects.Maps["drops"].Lookup(key, &counts); err != nil {
			log.Fatal(err)
		}
		sum := uint64(0)
		for _, count := range counts {
			sum += count
		}
		fmt.Println("drops", key, sum)
	}
}
