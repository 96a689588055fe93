/* As client.c, with the skeleton that `bpftool gen skeleton` writes of an optimized object: the object is part of this program.
 *
 * Exit codes: 0 the packet was counted; 1 it was not, or the object does not load; 77 no right to load programs here.
 */
#include <errno.h>
#include <stdio.h>

#include <bpf/bpf.h>

#include "xdp_count.skel.h"

/* Ethernet and IPv4 with UDP inside. */
static const unsigned char packet[64] = { [12] = 0x08, 0x00, 0x45, [17] = 50, [23] = 17 };

struct count {
	__u64 packets;
	__u64 bytes;
};

int main(void)
{
	struct count count = {};
	__u32 udp = 17;
	LIBBPF_OPTS(bpf_test_run_opts, run, .data_in = packet, .data_size_in = sizeof(packet), .repeat = 1);

	struct xdp_count *skeleton = xdp_count__open_and_load();
	if (!skeleton)
		return errno == EPERM ? 77 : 1;
	if (bpf_prog_test_run_opts(bpf_program__fd(skeleton->progs.xdp_count), &run) ||
	    bpf_map__lookup_elem(skeleton->maps.counters, &udp, sizeof(udp), &count, sizeof(count), 0)) {
		perror("xdp_count");
		return 1;
	}
	printf("returned %u, counted %llu packets of %llu bytes\n", run.retval, count.packets, count.bytes);
	xdp_count__destroy(skeleton);
	return count.packets == 1 && count.bytes == sizeof(packet) ? 0 : 1;
}
