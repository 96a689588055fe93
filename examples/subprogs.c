/* Static and global subprograms, calls across them, a bpf_loop callback, a tail call table. */
#include "bpf_small.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u64);
} totals SEC(".maps");

int pass(struct xdp_md *ctx);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 2);
	__uint(key_size, sizeof(__u32));
	__array(values, int(struct xdp_md *));
} tails SEC(".maps") = {
	.values = { [1] = (void *)&pass },
};

struct inner {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} inner_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct inner);
} outer SEC(".maps") = {
	.values = { (void *)&inner_map },
};

struct sum {
	__u64 total;
	__u32 step;
};

static __noinline __u64 mix(__u64 a, __u64 b)
{
	a ^= b << 7;
	a *= 0x9e3779b97f4a7c15ULL;
	return a ^ (a >> 29);
}

static long add_one(__u32 index, void *arg)
{
	struct sum *s = arg;

	s->total += mix(index, s->step);
	return index > 100;
}

__noinline int classify(__u32 length, __u32 queue)
{
	if (length < 64)
		return (int)(mix(length, queue) & 1);
	if (length > 1500)
		return 3;
	return 2;
}

static __noinline void account(__u32 index, __u64 amount)
{
	__u64 *t = bpf_map_lookup_elem(&totals, &index);

	if (t)
		__sync_fetch_and_add(t, amount);
}

SEC("xdp")
int entry(struct xdp_md *ctx)
{
	__u32 length = (__u32)(ctx->data_end - ctx->data);
	int class = classify(length, ctx->rx_queue_index);
	struct sum s = { 0, length };

	account((__u32)class, length);
	bpf_loop(16, add_one, &s, 0);
	account(0, s.total);
	if (class == 3)
		bpf_tail_call(ctx, &tails, 1);
	return class == 0 ? XDP_DROP : XDP_PASS;
}

SEC("xdp")
int pass(struct xdp_md *ctx)
{
	account(1, mix(ctx->ingress_ifindex, 3));
	return XDP_PASS;
}

char _license[] SEC("license") = "GPL";
