/* Like xdp1 and xdp_pktcntr: counts by protocol, if a control value says so. Structures on the stack, narrow and wide
 * accesses of one place. */
#include "net.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 256);
} counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 2);
} control SEC(".maps");

union word {
	__u64 all;
	__u32 half[2];
	__u16 quarter[4];
	__u8 byte[8];
};

SEC("xdp")
int counters_of_packets(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	__u32 zero = 0;
	__u32 *flag = bpf_map_lookup_elem(&control, &zero);
	volatile union word seen = { .all = 0 };

	if (!flag || data + sizeof(*eth) + sizeof(struct iphdr) > end)
		return XDP_PASS;
	seen.quarter[0] = eth->proto;
	seen.byte[2] = 7;
	seen.half[1] = bpf_htonl(0x01020304);
	struct iphdr *ip = data + sizeof(*eth);
	__u32 key = seen.quarter[0] == bpf_htons(0x0800) ? ip->protocol : 255;
	__u64 *count = bpf_map_lookup_elem(&counters, &key);

	if (count)
		__sync_fetch_and_add(count, 1);
	/* 1 in both orders: the first byte of a number as the network has it. */
	return *flag == 0 ? seen.byte[4] : XDP_DROP;
}
