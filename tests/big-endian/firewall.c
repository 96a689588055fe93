/* Like hXDP's xdp_fw: a flow is five numbers, looked up in both directions. */
#include "net.h"

struct flow {
	__u32 from;
	__u32 to;
	__u16 from_port;
	__u16 to_port;
	__u8 protocol;
	__u8 pad[3];
};

struct state {
	__u8 opened_inside;
	__u8 flags;
	__u16 port;
	__u32 packets;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct flow);
	__type(value, struct state);
	__uint(max_entries, 64);
} flows SEC(".maps");

SEC("xdp")
int firewall(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = data + sizeof(*eth);
	struct ports *ports = (void *)(ip + 1);

	if ((void *)(ports + 1) > end || eth->proto != bpf_htons(0x0800))
		return XDP_DROP;
	if (ip->protocol != IPPROTO_TCP && ip->protocol != IPPROTO_UDP)
		return XDP_PASS;
	struct flow flow = {};
	int outwards = (bpf_ntohl(ip->saddr) >> 24) == 10;

	flow.protocol = ip->protocol;
	flow.from = outwards ? ip->saddr : ip->daddr;
	flow.to = outwards ? ip->daddr : ip->saddr;
	flow.from_port = outwards ? ports->source : ports->dest;
	flow.to_port = outwards ? ports->dest : ports->source;
	struct state *known = bpf_map_lookup_elem(&flows, &flow);

	if (known) {
		known->packets++;
		return XDP_TX;
	}
	if (!outwards)
		return XDP_DROP;
	struct state new = { .opened_inside = 1, .flags = 3, .port = bpf_ntohs(ports->dest), .packets = 1 };

	bpf_map_update_elem(&flows, &flow, &new, 0);
	return XDP_PASS;
}
