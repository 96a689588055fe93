/* Follows 600 frames of an interpreter's stack that lie in a map, and makes one number of them. After the kernel's selftest
 * pyperf600. */
#include "common.h"

struct frame {
	__u32 back, code, line, flags;
};
struct stack {
	struct frame frames[1024];
};
SPACE(stacks, struct stack);
SPACE(hashes, __u64);

SEC("raw_tracepoint/kfree_skb")
int stack_frames(void *ctx)
{
	__u32 zero = 0, at = 0;
	struct stack *s = bpf_map_lookup_elem(&stacks, &zero);
	__u64 *out = bpf_map_lookup_elem(&hashes, &zero), hash = 5381, native = 0;

	if (!s || !out)
		return 0;
#pragma clang loop unroll(disable)
	for (int i = 0; i < 600; i++) {
		if (at >= 1024)
			break;
		struct frame *f = &s->frames[at];
		hash = hash * 33 + f->code;
		if (f->flags & 1)
			hash ^= f->line;
		if (f->flags & 2)
			native++;
		if (f->flags & 4)
			at += f->back & 3;
		at++;
		if (f->flags & 8)
			at += 2;
	}
	*out = hash ^ native << 56;
	return 0;
}
LICENSE;
