/* A firewall that lets through what a list of sources says; it never writes the list, so that it can be specialized. */
#include "bpf_small.h"

struct ethhdr {
	__u8 dst[6];
	__u8 src[6];
	__u16 proto;
} __attribute__((packed));

struct iphdr {
	__u8 ihl_version;
	__u8 tos;
	__u16 tot_len;
	__u16 id;
	__u16 frag_off;
	__u8 ttl;
	__u8 protocol;
	__u16 check;
	__u32 saddr;
	__u32 daddr;
};

struct rule {
	__u32 verdict;
	__u32 mark;
};

/* Set by the loader. */
const volatile __u32 strict = 0;
const volatile __u16 shortest = 20;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct rule);
} allowed SEC(".maps");

SEC("xdp")
int allow_list(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);

	if ((void *)(ip + 1) > end || eth->proto != bpf_htons(0x0800))
		return strict ? XDP_DROP : XDP_PASS;
	if (bpf_htons(ip->tot_len) < shortest)
		return XDP_DROP;

	__u32 source = ip->saddr;
	struct rule *rule = bpf_map_lookup_elem(&allowed, &source);

	if (!rule)
		return XDP_DROP;
	return rule->verdict;
}

char LICENSE[] SEC("license") = "GPL";
