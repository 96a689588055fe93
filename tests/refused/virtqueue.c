/* Adds up lengths in lists of buffers. After the kernel's selftest loop6, which clang 12 compiled so that the jumps were too
 * many. */
#include "common.h"

struct sg {
	__u64 page;
	__u32 offset, length;
};
struct lists {
	__u32 out, in;
	struct sg sgs[64][256];
};
SPACE(queues, struct lists);
SPACE(totals, __u64);

SEC("kprobe/virtqueue_add_sgs")
int virtqueue(void *ctx)
{
	__u32 zero = 0, bytes = 0, segments = 0;
	struct lists *q = bpf_map_lookup_elem(&queues, &zero);
	__u64 *out = bpf_map_lookup_elem(&totals, &zero);

	if (!q || !out)
		return 0;
	for (__u32 i = 0; i < 64; i++)
#pragma clang loop unroll(disable)
		for (__u32 n = 0; n < 256; n++) {
			struct sg *s = &q->sgs[i][n];
			if (s->page & 3)
				segments++;
			bytes += s->length;
		}
	*out = (__u64)bytes << 32 | segments;
	return 0;
}
LICENSE;
