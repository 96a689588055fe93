/* Every kind of map and of thing that only the loader knows: the bodies that the tests of the traps
 * (crates/driver/tests/all/loader_choices.rs) put in the place of these functions borrow the references.
 * Built with -mcpu=v4. */
#include "bpf_small.h"

enum { BPF_MAP_TYPE_RINGBUF = 27, BPF_MAP_TYPE_ARENA = 33 };
enum { BPF_F_MMAPABLE = 1 << 10 };

#define __kconfig __attribute__((section(".kconfig")))
#define __weak __attribute__((weak))
#define __arena __attribute__((address_space(1)))

struct bpf_spin_lock {
	__u32 val;
};

struct count {
	__u64 packets;
	__u64 bytes;
};

struct guarded {
	struct bpf_spin_lock lock;
	__u32 flags;
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
	__type(value, struct guarded);
} locked SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, struct count);
} per_cpu SEC(".maps");

struct inner {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, struct count);
} inner SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 4);
	__type(key, __u32);
	__array(values, struct inner);
} outer SEC(".maps") = {
	.values = { &inner, &inner },
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 4);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} jumps SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARENA);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 4);
} arena SEC(".maps");

/* The kernel has the first member, not the second. */
struct task_struct {
	int pid;
	int no_such_member;
} __attribute__((preserve_access_index));

struct no_such_type {
	int member;
} __attribute__((preserve_access_index));

enum bpf_map_type {
	BPF_MAP_TYPE_UNSPEC = 0,
};

extern int LINUX_KERNEL_VERSION __kconfig;
extern int CONFIG_HZ __kconfig __weak;

__u64 seen = 0;
__u64 ready = 0;
const volatile __u32 limit = 100;

static __noinline __u64 mix(__u64 a, __u64 b)
{
	a ^= b << 7;
	return a * 0x9e3779b97f4a7c15ULL;
}

static long count_up(__u32 index, void *arg)
{
	*(__u64 *)arg += index;
	return 0;
}

#define REFER(what) asm volatile("" ::"r"(&what))
#define EXISTS 2 /* BPF_FIELD_EXISTS, and BPF_TYPE_EXISTS 0, BPF_ENUMVAL_EXISTS 0 of their builtins */

static __always_inline __u64 everything(__u64 number)
{
	struct task_struct *task = 0;
	__u64 pair[2] = { number, 0 };

	REFER(counts);
	REFER(locked);
	REFER(per_cpu);
	REFER(inner);
	REFER(outer);
	REFER(events);
	REFER(jumps);
	REFER(arena);
	REFER(seen);
	REFER(ready);
	REFER(limit);
	REFER(LINUX_KERNEL_VERSION);
	REFER(CONFIG_HZ);
	bpf_loop(4, count_up, &pair[0], 0);
	number += __builtin_preserve_field_info(task->no_such_member, EXISTS);
	number += __builtin_preserve_type_info(*(struct no_such_type *)0, 0);
	number += __builtin_preserve_enum_value(*(enum bpf_map_type *)BPF_MAP_TYPE_UNSPEC, 0);
	return mix(number, pair[0]);
}

/* Two arguments and a result of 64 bits, without references. */
static __noinline __u64 blend(__u64 a, __u64 b)
{
	return (a << 3) + mix(a, b);
}

SEC("xdp")
int on_xdp(struct xdp_md *ctx)
{
	return everything(blend(ctx->rx_queue_index, 2)) & 1 ? XDP_PASS : XDP_DROP;
}

SEC("tc")
int on_skb(void *ctx)
{
	return everything(blend(*(__u32 *)ctx, 2)) & 1 ? 0 : 2;
}

char _license[] SEC("license") = "GPL";
