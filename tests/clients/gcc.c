/* The counting of examples/xdp_count.c in small, in what GCC knows of BPF: helpers by attribute, maps by BTF. */
typedef unsigned int __u32; typedef unsigned long long __u64;
typedef unsigned char __u8; typedef unsigned short __u16;
#define SEC(name) __attribute__((section(name), used))
#define __uint(name, val) int (*name)[val]
#define __type(name, val) typeof(val) *name
struct xdp_md { __u32 data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex; };
struct count { __u64 packets, bytes; };
struct { __uint(type, 1); __uint(max_entries, 256); __type(key, __u32); __type(value, struct count); } counters SEC(".maps");
void *bpf_map_lookup_elem(void *, const void *) __attribute__((kernel_helper(1)));
long bpf_map_update_elem(void *, const void *, const void *, __u64) __attribute__((kernel_helper(2)));
SEC("xdp") int xdp_count(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 key;
	if (data + 34 > end)
		return 2;
	if (data[12] != 8 || data[13] != 0)
		return 2;
	key = data[23];
	struct count *c = bpf_map_lookup_elem(&counters, &key);
	if (c) {
		c->packets += 1;
		c->bytes += end - data;
	} else {
		struct count first = { 1, end - data };
		bpf_map_update_elem(&counters, &key, &first, 1);
	}
	return 2;
}
char _license[] SEC("license") = "GPL";
