/* A section name that tells no program type: tests/all/runs.rs. Built with clang -target bpf -O2. */
struct context {
	unsigned int first, second;
};

__attribute__((section("my_hook"), used)) int custom(struct context *ctx)
{
	volatile unsigned long long twice = ctx->first;

	return (int)twice & 1;
}

char _license[] __attribute__((section("license"), used)) = "GPL";
