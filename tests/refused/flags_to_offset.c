/* The length of a GRE header follows from its flags, and so on for all layers of a tunnel: each optional field moves what comes
 * after it. After samples that parse tunnels (parse_varlen, xdp_tunnel). */
#include "common.h"

SPACE(inner, __u32);

SEC("xdp")
int flags_to_offset(struct xdp_md *ctx)
{
	__u8 *end = DATA_END(ctx), *data = DATA(ctx);
	__u32 zero = 0, *out = bpf_map_lookup_elem(&inner, &zero);

	if (!out || data + 96 > end)
		return XDP_PASS;
	__u32 offset = 14;
#pragma unroll
	for (int i = 0; i < 20; i++)
		if (data[i + 34] & 0x80)
			offset += 4 + i * i;
	if (data + offset + 4 > end)
		return XDP_PASS;
	*out = *(__u32 *)(data + offset);
	return XDP_PASS;
}
LICENSE;
