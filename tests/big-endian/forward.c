/* Like the kernel's xdp_fwd and xdp2: swaps the addresses of a frame, takes one from the time to live and mends the
 * checksum. */
#include "net.h"

static __always_inline void swap_addresses(void *data)
{
	__u16 *p = data;
	__u16 dst[3] = { p[0], p[1], p[2] };

	p[0] = p[3];
	p[1] = p[4];
	p[2] = p[5];
	p[3] = dst[0];
	p[4] = dst[1];
	p[5] = dst[2];
}

SEC("xdp")
int forward(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;

	if (data + sizeof(*eth) > end)
		return XDP_DROP;
	if (eth->proto == bpf_htons(0x0800)) {
		struct iphdr *ip = data + sizeof(*eth);

		if ((void *)(ip + 1) > end)
			return XDP_DROP;
		if (ip->ttl <= 1)
			return XDP_PASS;
		__u32 check = ip->check;
		check += bpf_htons(0x0100);
		ip->check = (__u16)(check + (check >= 0xffff));
		ip->ttl--;
	} else if (eth->proto == bpf_htons(0x86dd)) {
		struct ipv6hdr *ip = data + sizeof(*eth);

		if ((void *)(ip + 1) > end)
			return XDP_DROP;
		if (ip->hop_limit <= 1)
			return XDP_PASS;
		ip->hop_limit--;
	} else {
		return XDP_PASS;
	}
	swap_addresses(data);
	return XDP_TX;
}
