/* Multiplies a row of BF16 weights, converted to fixed point one by one. After notes on a language model in BPF, whose loop
 * over 3,072 columns was "too complex"; here there are 16,384. */
#include "common.h"

struct row {
	__u16 weight[16384];
	__s32 x[16384];
};
SPACE(rows, struct row);
SPACE(results, __s64);

SEC("xdp")
int bf16(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct row *r = bpf_map_lookup_elem(&rows, &zero);
	__s64 *out = bpf_map_lookup_elem(&results, &zero), sum = 0;

	if (!r || !out)
		return XDP_PASS;
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < 16384; i++) {
		__u16 w = r->weight[i];
		__u32 exponent = w >> 7 & 0xff;
		__s64 fixed = (w & 0x7f) | 0x80;
		__s32 shift = (__s32)exponent - 110;
		if (shift > 30)
			fixed = fixed << 30;
		else if (shift >= 0)
			fixed = fixed << shift;
		else if (shift > -8)
			fixed = fixed >> -shift;
		else
			fixed = 0;
		if (w & 0x8000)
			fixed = -fixed;
		sum += fixed * r->x[i];
	}
	*out = sum;
	return XDP_PASS;
}
LICENSE;
