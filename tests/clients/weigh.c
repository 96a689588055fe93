/* A function and a map for weighed.c, which `bpftool gen object` links. */
#include "../../examples/bpf_small.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u64);
} shared SEC(".maps");

__noinline int weigh(__u32 bytes)
{
	__u32 key = bytes & 3;
	__u64 *sum = bpf_map_lookup_elem(&shared, &key);

	if (sum)
		*sum += bytes * 3;
	return bytes + 1;
}

char _license[] SEC("license") = "GPL";
