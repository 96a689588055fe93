/* Like Katran's balancer: a hash of the flow chooses a server, whose address is written into the packet. */
#include "net.h"

struct server {
	__u8 mac[6];
	__u16 weight;
	__u32 address;
	__u64 bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct server);
	__uint(max_entries, 16);
} servers SEC(".maps");

static __always_inline __u32 rotated(__u32 word, int by)
{
	return word << by | word >> (32 - by);
}

static __always_inline __u32 hash(__u32 a, __u32 b, __u32 c)
{
	c ^= b; c -= rotated(b, 14);
	a ^= c; a -= rotated(c, 11);
	b ^= a; b -= rotated(a, 25);
	c ^= b; c -= rotated(b, 16);
	a ^= c; a -= rotated(c, 4);
	b ^= a; b -= rotated(a, 14);
	c ^= b; c -= rotated(b, 24);
	return c;
}

SEC("xdp")
int balancer(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = data + sizeof(*eth);
	struct ports *ports = (void *)(ip + 1);

	if ((void *)(ports + 1) > end)
		return XDP_PASS;
	if (eth->proto != bpf_htons(0x0800) || ip->ihl != 5 || ip->protocol != IPPROTO_UDP)
		return XDP_PASS;
	if (bpf_ntohs(ip->frag_off) & 0x3fff)
		return XDP_DROP;
	__u32 both = (__u32)bpf_ntohs(ports->source) << 16 | bpf_ntohs(ports->dest);
	__u32 index = hash(bpf_ntohl(ip->saddr), both, 0xcafe) % 16;
	struct server *server = bpf_map_lookup_elem(&servers, &index);

	if (!server)
		return XDP_ABORTED;
	__builtin_memcpy(eth->src, eth->dst, 6);
	__builtin_memcpy(eth->dst, server->mac, 6);
	ip->daddr = bpf_htonl(0x0a000000 | index);
	ports->dest = bpf_htons(1000 + index);
	server->bytes += bpf_ntohs(ip->tot_len);
	return XDP_TX;
}
