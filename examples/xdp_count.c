/* Counts packets and bytes by IP protocol: a packet parser with a hash map. */
#include "bpf_small.h"

struct ethhdr {
	__u8 dst[6];
	__u8 src[6];
	__u16 proto;
} __attribute__((packed));

struct vlanhdr {
	__u16 tci;
	__u16 proto;
};

struct count {
	__u64 packets;
	__u64 bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct count);
} counters SEC(".maps");

SEC("xdp")
int xdp_count(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	void *next = eth + 1;
	__u32 key = 0;

	if (next > end)
		return XDP_ABORTED;
	__u16 proto = eth->proto;

#pragma unroll
	for (int i = 0; i < 2; i++) {
		if (proto == bpf_htons(0x8100) || proto == bpf_htons(0x88a8)) {
			struct vlanhdr *vlan = next;
			next = vlan + 1;
			if (next > end)
				return XDP_ABORTED;
			proto = vlan->proto;
		}
	}
	if (proto == bpf_htons(0x0800)) {
		__u8 *ip = next;
		if ((void *)(ip + 20) > end)
			return XDP_PASS;
		key = ip[9];
	} else if (proto == bpf_htons(0x86dd)) {
		__u8 *ip = next;
		if ((void *)(ip + 40) > end)
			return XDP_PASS;
		key = ip[6];
	} else {
		key = 0x10000 | proto;
	}

	struct count *c = bpf_map_lookup_elem(&counters, &key);
	if (c) {
		__sync_fetch_and_add(&c->packets, 1);
		__sync_fetch_and_add(&c->bytes, (__u64)(end - data));
	} else {
		struct count fresh = { 1, (__u64)(end - data) };
		bpf_map_update_elem(&counters, &key, &fresh, 0);
	}
	return key == 17 ? XDP_DROP : XDP_PASS;
}

char _license[] SEC("license") = "GPL";
