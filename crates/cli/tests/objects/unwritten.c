/* Programs that read stack bytes they have not written: tests/all/runs.rs. Built with clang -target bpf -O2. */
struct xdp_md {
	unsigned int data, data_end;
};

/* What it returns is whatever the stack holds. */
__attribute__((section("xdp"), used)) int unwritten(struct xdp_md *ctx)
{
	unsigned long long value;

	asm volatile("%0 = *(u64 *)(r10 - 16)" : "=r"(value));
	return (int)value;
}

/* What it returns has nothing to do with it. */
__attribute__((section("xdp"), used)) int padded(struct xdp_md *ctx)
{
	unsigned long long value;

	asm volatile("%0 = *(u64 *)(r10 - 16)" : "=r"(value));
	return 2;
}

char _license[] __attribute__((section("license"), used)) = "GPL";
