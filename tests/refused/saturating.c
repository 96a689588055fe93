/* Takes header lengths off a remaining length, which never goes below zero, while it walks extension headers. After notes in an
 * XDP firewall: another code for saturating_sub, and the verifier no longer pruned. */
#include "common.h"

struct walk {
	__u8 bytes[4096];
};
SPACE(walks, struct walk);
SPACE(ends, __u64);

SEC("xdp")
int saturating(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct walk *w = bpf_map_lookup_elem(&walks, &zero);
	__u64 *out = bpf_map_lookup_elem(&ends, &zero), left = 1500, at = 0;

	if (!w || !out)
		return XDP_PASS;
#pragma clang loop unroll(disable)
	for (int i = 0; i < 16; i++) {
		__u64 next = w->bytes[at & 4095], length = (w->bytes[at + 1 & 4095] & 15) * 8 + 8;
		left = left > length ? left - length : 0;
		if (next == 44)
			length = 8;
		if (next == 51)
			length = (length >> 1) + 4;
		if (next & 0x80)
			length += 2;
		at += length;
	}
	*out = left << 32 | at;
	return XDP_PASS;
}
LICENSE;
