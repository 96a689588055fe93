/* A loop of 2^32 turns over a field of the context. After the kernel's selftest loop3. */
#include "common.h"

SEC("socket")
int while_true(struct xdp_md *ctx)
{
	__u64 i = 0;
	volatile __u32 *field = &ctx->data_meta;
	__u32 sum = 0;

#pragma clang loop unroll(disable)
	do {
		i++;
		sum += *field;
	} while (i < 0x100000000ULL);
	return sum;
}
LICENSE;
