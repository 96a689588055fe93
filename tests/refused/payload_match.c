/* Compares a payload with patterns out of a map, byte by byte. After a thread on xdp-newbies about XDP-Firewall: "The
 * sequence of 8193 jumps is too complex". */
#include "common.h"

struct filter {
	__u8 enabled, action;
	__u16 length;
	__u8 payload[128];
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 80);
	__type(key, __u32);
	__type(value, struct filter);
} filters SEC(".maps");

SEC("xdp")
int payload_match(struct xdp_md *ctx)
{
	__u8 *end = DATA_END(ctx), *data = DATA(ctx);
	__u8 *payload = data + sizeof(struct ethhdr) + sizeof(struct iphdr) + 8;

	for (__u32 i = 0; i < 80; i++) {
		__u32 key = i;
		struct filter *f = bpf_map_lookup_elem(&filters, &key);
		if (!f)
			break;
		if (!f->enabled || !f->length)
			continue;
		int found = 1;
		for (__u32 j = 0; j < 128; j++) {
			if (j + 1 > f->length)
				break;
			if (payload + j + 1 > end || payload[j] != f->payload[j]) {
				found = 0;
				break;
			}
		}
		if (found)
			return f->action ? XDP_PASS : XDP_DROP;
	}
	return XDP_PASS;
}
LICENSE;
