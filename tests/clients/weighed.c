/* A program whose function and map are weigh.c's. */
#include "../../examples/bpf_small.h"

extern struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u64);
} shared __attribute__((section(".maps")));
extern int weigh(__u32 bytes);

SEC("xdp")
int xdp_weigh(struct xdp_md *ctx)
{
	__u32 key = 0;
	__u64 *sum = bpf_map_lookup_elem(&shared, &key);
	int weight = weigh(ctx->data_end - ctx->data);

	if (sum && *sum > 5)
		return XDP_DROP;
	return weight > 10 ? XDP_PASS : XDP_ABORTED;
}
