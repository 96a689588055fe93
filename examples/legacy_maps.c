/* Maps the old way, for loaders before libbpf 1.0 and for iproute2. */
#include "bpf_small.h"

struct bpf_map_def {
	__u32 type;
	__u32 key_size;
	__u32 value_size;
	__u32 max_entries;
	__u32 map_flags;
};

struct bpf_map_def SEC("maps") drops = {
	.type = BPF_MAP_TYPE_PERCPU_ARRAY,
	.key_size = 4,
	.value_size = 8,
	.max_entries = 2,
};

struct bpf_map_def SEC("maps") sources = {
	.type = BPF_MAP_TYPE_HASH,
	.key_size = 4,
	.value_size = 16,
	.max_entries = 4096,
	.map_flags = 1,
};

SEC("prog")
int legacy(struct xdp_md *ctx)
{
	__u32 key = ctx->ingress_ifindex;
	__u64 *count;

	if (bpf_map_lookup_elem(&sources, &key))
		return XDP_PASS;
	key &= 1;
	count = bpf_map_lookup_elem(&drops, &key);
	if (count)
		*count += 1;
	return XDP_DROP;
}

char _license[] SEC("license") = "GPL";
