/* One program for each kind of hook, with every kind of reference in it: the bodies that the tests of the
 * traps (crates/driver/tests/all/traps.rs) put in their place borrow the references. */
#include "bpf_small.h"

struct count {
	__u64 packets;
	__u64 bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, struct count);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, struct count);
} totals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 4);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} jumps SEC(".maps");

struct task_struct {
	int pid;
	int tgid;
} __attribute__((preserve_access_index));

__u64 seen = 0;
__u64 dropped = 0;
const volatile __u32 limit = 100;

static __noinline __u64 mix(__u64 a, __u64 b)
{
	a ^= b << 7;
	return a * 0x9e3779b97f4a7c15ULL;
}

static __noinline __u64 blend(__u64 a, __u64 b)
{
	return (a << 3) + mix(a, b);
}

static __noinline __u64 sum(const __u64 *pair)
{
	return mix(pair[0], 0) + pair[1];
}

static long count_up(__u32 index, void *arg)
{
	*(__u64 *)arg += index;
	return 0;
}

static long count_down(__u32 index, void *arg)
{
	*(__u64 *)arg -= index;
	return 0;
}

#define REFER(what) asm volatile("" ::"r"(&what))

static __always_inline __u64 everything(__u64 number)
{
	__u64 pair[2] = { number, 0 };

	REFER(counts);
	REFER(totals);
	REFER(jumps);
	REFER(seen);
	REFER(dropped);
	REFER(limit);
	bpf_loop(4, count_up, &pair[0], 0);
	bpf_loop(4, count_down, &pair[1], 0);
	return mix(number, 1) + blend(number, 2) + sum(pair);
}

SEC("xdp")
int on_xdp(struct xdp_md *ctx)
{
	return everything(ctx->rx_queue_index) & 1 ? XDP_PASS : XDP_DROP;
}

SEC("tc")
int on_skb(void *ctx)
{
	return everything(*(__u32 *)ctx) & 1 ? 0 : 2;
}

SEC("tracepoint/syscalls/sys_enter_getpid")
int on_event(void *ctx)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	int pid = 0;

	bpf_probe_read_kernel(&pid, sizeof(pid), &task->tgid);
	seen += pid;
	return everything(pid) & 1;
}

char _license[] SEC("license") = "GPL";
