/* Which of 24 conditions hold makes the number of a rule. After policies in tetragon and cilium, which look up a row by what was
 * matched. */
#include "common.h"

struct facts {
	__u32 value[24];
};
struct rules {
	__u32 row[1024];
};
SPACE(facts, struct facts);
SPACE(rules, struct rules);
SPACE(verdicts, __u32);

SEC("kprobe/security_file_open")
int capabilities(void *ctx)
{
	__u32 zero = 0, row = 0;
	struct facts *f = bpf_map_lookup_elem(&facts, &zero);
	struct rules *r = bpf_map_lookup_elem(&rules, &zero);
	__u32 *out = bpf_map_lookup_elem(&verdicts, &zero);

	if (!f || !r || !out)
		return 0;
#pragma unroll
	for (int i = 0; i < 24; i++)
		if (f->value[i] > 1000 + i)
			row += 3 + i;
	if (row < 1024)
		*out = r->row[row];
	return 0;
}
LICENSE;
