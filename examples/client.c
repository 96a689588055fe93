/* Loads an object with the program xdp_count, runs it on one packet, and looks into its map: what the recipes beside this file
 * do with the objects that they have made. It attaches nothing.
 *
 *     client xdp_count.o
 *
 * Exit codes: 0 the packet was counted; 1 it was not, or the object does not load; 77 no right to load programs here.
 */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

/* Ethernet and IPv4 with UDP inside. */
static const unsigned char packet[64] = { [12] = 0x08, 0x00, 0x45, [17] = 50, [23] = 17 };

struct count {
	__u64 packets;
	__u64 bytes;
};

int main(int argc, char **argv)
{
	struct count count = {};
	__u32 udp = 17;
	LIBBPF_OPTS(bpf_test_run_opts, run, .data_in = packet, .data_size_in = sizeof(packet), .repeat = 1);

	if (argc != 2) {
		fprintf(stderr, "usage: client xdp_count.o\n");
		return 1;
	}
	libbpf_set_strict_mode(LIBBPF_STRICT_ALL);
	struct bpf_object *object = bpf_object__open_file(argv[1], NULL);
	if (!object)
		return 1;
	int error = bpf_object__load(object);
	if (error)
		return error == -EPERM ? 77 : 1;
	int program = bpf_program__fd(bpf_object__find_program_by_name(object, "xdp_count"));
	int map = bpf_map__fd(bpf_object__find_map_by_name(object, "counters"));
	if (bpf_prog_test_run_opts(program, &run) || bpf_map_lookup_elem(map, &udp, &count)) {
		perror(argv[1]);
		return 1;
	}
	printf("%s: returned %u, counted %llu packets of %llu bytes\n", argv[1], run.retval, count.packets, count.bytes);
	bpf_object__close(object);
	return count.packets == 1 && count.bytes == sizeof(packet) ? 0 : 1;
}
