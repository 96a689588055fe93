/* Sorts 20,000 samples into classes. After bcc's tools that make histograms of what user space has left in a map. */
#include "common.h"

struct samples {
	__u32 us[20000];
};
SPACE(latencies, struct samples);
SPACE(slow, __u64[3]);

SEC("tracepoint/sched/sched_switch")
int histogram(void *ctx)
{
	__u32 zero = 0;
	struct samples *s = bpf_map_lookup_elem(&latencies, &zero);
	__u64 *out = bpf_map_lookup_elem(&slow, &zero), fast = 0, medium = 0, late = 0;

	if (!s || !out)
		return 0;
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < 20000; i++) {
		__u32 us = s->us[i];
		if (us > 100)
			late++;
		if (us > 10)
			medium++;
		if (us)
			fast++;
	}
	out[0] = fast;
	out[1] = medium;
	out[2] = late;
	return 0;
}
LICENSE;
