/* Counts the leading bits that an address has in common with each of many, and keeps the most. After samples that find the
 * longest prefix without the map for that. */
#include "common.h"

struct table {
	__u32 network[9000];
};
SPACE(networks, struct table);
SPACE(best, __u32);

SEC("xdp")
int longest_prefix(struct xdp_md *ctx)
{
	__u32 zero = 0, most = 0, address = ctx->rx_queue_index;
	struct table *t = bpf_map_lookup_elem(&networks, &zero);
	__u32 *out = bpf_map_lookup_elem(&best, &zero);

	if (!t || !out)
		return XDP_PASS;
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < 9000; i++) {
		__u32 different = t->network[i] ^ address;
		if (different < 0x100)
			different = 0;
		if (different > most)
			most = different;
	}
	*out = most;
	return XDP_PASS;
}
LICENSE;
