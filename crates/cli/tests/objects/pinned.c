/* A program with a map that its loader pins: tests/all/runs.rs. Built with clang -target bpf -O2 -g. */
enum { BPF_MAP_TYPE_ARRAY = 2, LIBBPF_PIN_BY_NAME = 1 };
#define __uint(name, val) int(*name)[val]
#define __type(name, val) val *name

struct xdp_md {
	unsigned int data, data_end;
};
static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, unsigned int);
	__type(value, unsigned long long);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} bpf_opt_pinned __attribute__((section(".maps"), used));

__attribute__((section("xdp"), used)) int pinned(struct xdp_md *ctx)
{
	unsigned char *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	unsigned int key = 0;
	unsigned long long *count;

	if (data + 14 > end)
		return 1;
	count = bpf_map_lookup_elem(&bpf_opt_pinned, &key);
	if (count)
		*count += data[12] | data[13] << 8;
	return 2;
}

char _license[] __attribute__((section("license"), used)) = "GPL";
