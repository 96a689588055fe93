/* A loop that counts to a large number. After a course on eBPF (iximiuc labs), which shows so that a loop of a million turns
 * is too large. */
#include "common.h"

SPACE(counters, __u64);

SEC("xdp")
int many_turns(struct xdp_md *ctx)
{
	__u32 zero = 0;
	__u64 *counter = bpf_map_lookup_elem(&counters, &zero);

	if (!counter)
		return XDP_PASS;
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < 1000000; i++) {
		__u64 value = *counter;
		*counter = value + (i & 0xff);
	}
	return XDP_PASS;
}
LICENSE;
