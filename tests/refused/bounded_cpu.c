/* Chooses one of many buffers by the number of the CPU, which is bounded by a comparison each time. After a change of bpftrace
 * (number 3510): the comparisons were 8,192 jumps. */
#include "common.h"

struct buffers {
	__u64 slot[64];
};
SPACE(scratch, struct buffers);

#define NEXT                                              \
	{                                                 \
		__u64 cpu = bpf_get_smp_processor_id();   \
		if (cpu > 6)                              \
			cpu = 6;                          \
		at += cpu;                                \
	}

SEC("kprobe/do_nanosleep")
int bounded_cpu(void *ctx)
{
	__u32 zero = 0;
	struct buffers *b = bpf_map_lookup_elem(&scratch, &zero);
	__u64 at = 0;

	if (!b)
		return 0;
#pragma clang loop unroll(disable)
	for (int i = 0; i < 20000; i++) {
		at = 0;
		NEXT NEXT NEXT NEXT NEXT NEXT NEXT NEXT NEXT
		b->slot[at] += 1;
	}
	return 0;
}
LICENSE;
