/* Runs through a list of actions of different lengths in a map, with a cursor. After an XDP program of an SDN switch, whose
 * author notes that the bounded loop is "8193 jumps". */
#include "common.h"

struct list {
	__u32 count, length;
	__u8 bytes[2048];
};
SPACE(lists, struct list);
SPACE(outcome, __u32[4]);

SEC("xdp")
int actions(struct xdp_md *ctx)
{
	__u32 zero = 0, at = 0, port = 0, meter = 0, drop = 0, done = 0;
	struct list *l = bpf_map_lookup_elem(&lists, &zero);
	__u32 *out = bpf_map_lookup_elem(&outcome, &zero);

	if (!l || !out)
		return XDP_PASS;
#pragma clang loop unroll(disable)
	for (int i = 0; i < 64; i++) {
		if (done >= l->count || at > 2048 - 8)
			break;
		__u8 *a = l->bytes + at;
		__u8 type = a[0], length = a[1];
		if (type == 0)
			break;
		if (type == 1)
			port = a[2];
		if (type == 2)
			meter += a[3];
		if (type == 3)
			drop = 1;
		at += type == 4 ? 4 : 8;
		if (length & 1)
			at += 4;
		done++;
	}
	out[0] = port;
	out[1] = meter;
	out[2] = drop;
	out[3] = done;
	return drop ? XDP_DROP : XDP_PASS;
}
LICENSE;
