/* The checksum of a whole packet, two bytes at a time, with folding in the loop. After questions on Stack Overflow about
 * checksums of payloads (78753911 is of that kind). */
#include "common.h"

struct copy {
	__u16 words[32768];
};
SPACE(copies, struct copy);
SPACE(sums, __u32);

SEC("xdp")
int checksum(struct xdp_md *ctx)
{
	__u32 zero = 0, sum = 0;
	struct copy *c = bpf_map_lookup_elem(&copies, &zero);
	__u32 *out = bpf_map_lookup_elem(&sums, &zero);

	if (!c || !out)
		return XDP_PASS;
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < 32768; i++) {
		sum += c->words[i];
		if (sum > 0xffff)
			sum -= 0xffff;
	}
	*out = ~sum;
	return XDP_PASS;
}
LICENSE;
