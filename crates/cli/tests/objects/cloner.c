/* A program whose test run would send packets: tests/all/runs.rs. Built with clang -target bpf -O2. */
struct __sk_buff {
	unsigned int len, pkt_type, mark;
};
static long (*bpf_clone_redirect)(struct __sk_buff *skb, unsigned int ifindex, unsigned long long flags) = (void *)13;

__attribute__((section("tc"), used)) int cloner(struct __sk_buff *skb)
{
	volatile unsigned long long twice;

	bpf_clone_redirect(skb, 1, 0);
	twice = 7;
	return (int)twice & 1;
}

char _license[] __attribute__((section("license"), used)) = "GPL";
