/* Calls that do nothing but give a result, which a compiler has to make where they stand: it does not know what a helper does. */
#include "bpf_small.h"

struct per_cpu {
	__u64 packets;
	__u64 bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, struct per_cpu);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u64);
} limits SEC(".maps");

static __always_inline struct per_cpu *mine(void)
{
	__u32 cpu = bpf_get_smp_processor_id() & 255;

	return bpf_map_lookup_elem(&counts, &cpu);
}

/* Each part of the program asks which processor it runs on. */
SEC("xdp")
int merged(struct xdp_md *ctx)
{
	__u32 cpu = bpf_get_smp_processor_id();

	if ((void *)(long)ctx->data + 60 > (void *)(long)ctx->data_end)
		return cpu & 1 ? XDP_DROP : XDP_PASS;
	__u32 queue = ctx->rx_queue_index + bpf_get_smp_processor_id();

	if (queue & 1)
		queue += bpf_get_smp_processor_id();
	return queue & 2 ? XDP_DROP : XDP_PASS;
}

/* The time was for a message that is no longer printed; the limit for a check that is no longer made. */
SEC("xdp")
int dropped(struct xdp_md *ctx)
{
	__u64 start = bpf_ktime_get_ns();
	__u32 key = ctx->rx_queue_index;
	__u64 *limit = bpf_map_lookup_elem(&limits, &key);
	struct per_cpu *c = mine();

	if (!c)
		return XDP_ABORTED;
	c->packets++;
	return XDP_PASS;
}

/* Only long packets are held against the limit. */
SEC("xdp")
int sunk(struct xdp_md *ctx)
{
	__u32 key = ctx->rx_queue_index;
	long length = (void *)(long)ctx->data_end - (void *)(long)ctx->data;
	__u64 *limit = bpf_map_lookup_elem(&limits, &key);

	if (length < 512)
		return XDP_PASS;
	return limit && length > (long)*limit ? XDP_DROP : XDP_PASS;
}

char LICENSE[] SEC("license") = "GPL";
