/* Looks for "Host: " in a packet, then copies the name. After an issue of parttimenerd/ebpf-verifier-errors (number 5):
 * "BPF program is too large". */
#include "common.h"

struct name {
	char text[256];
	__u16 length;
};
SPACE(names, struct name);

SEC("xdp")
int host_header(struct xdp_md *ctx)
{
	char *end = DATA_END(ctx), *at = DATA(ctx);
	int found = 0;

	for (__u16 i = 0; i <= 506; i++) {
		if (at + 6 > end)
			return XDP_PASS;
		if (at[0] == 'H' && at[1] == 'o' && at[2] == 's' && at[3] == 't' && at[4] == ':' && at[5] == ' ') {
			found = 1;
			at += 6;
			break;
		}
		at++;
	}
	if (!found)
		return XDP_PASS;
	__u32 zero = 0;
	struct name *n = bpf_map_lookup_elem(&names, &zero);
	if (!n)
		return XDP_PASS;
	n->length = 0;
	for (__u16 j = 0; j < 253; j++) {
		if (at + 1 > end || *at == '\r')
			break;
		n->text[j] = *at++;
		n->length++;
	}
	return XDP_PASS;
}
LICENSE;
