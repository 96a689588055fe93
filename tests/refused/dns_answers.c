/* Goes through the answers of a DNS packet: a name is a pointer or a list of labels, then come type and length. After an
 * issue of obdev/littlesnitch-linux (number 6). */
#include "common.h"

struct answer {
	__u32 address, kind;
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, struct answer);
} answers SEC(".maps");

SEC("xdp")
int dns_answers(struct xdp_md *ctx)
{
	__u8 *end = DATA_END(ctx), *data = DATA(ctx);
	__u32 offset = sizeof(struct ethhdr) + sizeof(struct iphdr) + 8 + 12, count = 0;

	for (int i = 0; i < 32; i++) {
		for (int label = 0; label < 8; label++) {
			if (offset > 1400 || data + offset + 1 > end)
				return XDP_PASS;
			__u8 length = data[offset];
			if (length == 0) {
				offset++;
				break;
			}
			if ((length & 0xc0) == 0xc0) {
				offset += 2;
				break;
			}
			offset += length + 1;
		}
		if (offset > 1400 || data + offset + 10 > end)
			return XDP_PASS;
		__u16 kind = *(__u16 *)(data + offset), length = bpf_htons(*(__u16 *)(data + offset + 8));
		offset += 10;
		if (kind == bpf_htons(1) && length == 4) {
			if (data + offset + 4 > end)
				return XDP_PASS;
			__u32 key = count++;
			struct answer a = { *(__u32 *)(data + offset), kind };
			bpf_map_update_elem(&answers, &key, &a, 0);
		}
		offset += length & 0xff;
	}
	return XDP_PASS;
}
LICENSE;
