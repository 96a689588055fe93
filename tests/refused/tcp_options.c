/* Walks all 40 bytes of TCP options. After a thread on netdev about SYN cookies in XDP: more than 10 turns are too many for
 * the verifier. */
#include "common.h"

struct seen {
	__u32 mss, wscale, sack, ts;
};
SPACE(options, struct seen);

SEC("xdp")
int tcp_options(struct xdp_md *ctx)
{
	__u8 *end = DATA_END(ctx), *data = DATA(ctx);
	struct tcphdr *tcp = (void *)(data + sizeof(struct ethhdr) + sizeof(struct iphdr));
	__u32 zero = 0, mss = 0, wscale = 0, sack = 0, ts = 0;

	if ((void *)(tcp + 1) > (void *)end)
		return XDP_PASS;
	__u8 *at = (__u8 *)(tcp + 1);
	__u8 *stop = (__u8 *)tcp + ((tcp->flags & 0xf0) >> 2);
	for (int i = 0; i < 40; i++) {
		if (at >= stop || at + 1 > end)
			break;
		__u8 kind = at[0];
		if (kind == 0)
			break;
		if (kind == 1) {
			at++;
			continue;
		}
		if (at + 2 > stop || at + 2 > end)
			break;
		__u8 size = at[1];
		if (size < 2)
			break;
		if (kind == 2 && size == 4) {
			if (at + 4 > stop || at + 4 > end)
				break;
			mss = *(__u16 *)(at + 2);
		} else if (kind == 3 && size == 3) {
			if (at + 3 > stop || at + 3 > end)
				break;
			wscale = at[2] > 14 ? 14 : at[2];
		} else if (kind == 4) {
			sack = 1;
		} else if (kind == 8 && size == 10) {
			if (at + 10 > stop || at + 10 > end)
				break;
			ts = *(__u32 *)(at + 2);
		}
		at += size;
	}
	struct seen *s = bpf_map_lookup_elem(&options, &zero);
	if (s) {
		s->mss = mss;
		s->wscale = wscale;
		s->sack = sack;
		s->ts = ts;
	}
	return XDP_PASS;
}
LICENSE;
