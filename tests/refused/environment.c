/* Looks for a variable among up to 256 strings of an environment. After an issue of iovisor/bcc (number 3725); here the block
 * of strings has been read into a map already. */
#include "common.h"

struct block {
	char text[4096];
};
SPACE(environments, struct block);
SPACE(found, __u32);

SEC("tracepoint/sched/sched_process_exec")
int environment(void *ctx)
{
	__u32 zero = 0, at = 0, where = 0;
	struct block *b = bpf_map_lookup_elem(&environments, &zero);
	__u32 *out = bpf_map_lookup_elem(&found, &zero);

	if (!b || !out)
		return 0;
	for (int n = 0; n < 256; n++) {
		if (at > 4080)
			break;
		char *var = b->text + at;
		if (var[0] == 0)
			break;
		if (var[0] == 'H' && var[1] == 'I' && var[2] == 'S' && var[3] == 'T' && var[4] == 'S' && var[5] == 'I' &&
		    var[6] == 'Z' && var[7] == 'E')
			where = at + 1;
		for (int k = 0; k < 64; k++) {
			if (at > 4080 || b->text[at] == 0)
				break;
			at++;
		}
		at++;
	}
	*out = where;
	return 0;
}
LICENSE;
