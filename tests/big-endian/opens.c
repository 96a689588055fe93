/* Like the kernel's sys_enter_open: counts calls and sums what they ask for; global data and a subprogram. */
#include "bpf_small_of_tracing.h"

struct record {
	__u64 count;
	__u32 last;
	__u16 flags;
	__u8 modes[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u32);
	__type(value, struct record);
	__uint(max_entries, 64);
} records SEC(".maps");

__u64 total = 0x0102030405060708ULL;
__u32 kinds[4];
const char label[] = "open";

static __noinline __u32 kind(__u64 flags)
{
	return (flags & 3) == 0 ? 0 : (flags >> 8) & 3;
}

SEC("tracepoint/syscalls/sys_enter_open")
int opens(struct arguments *args)
{
	__u32 pid = bpf_get_current_pid_tgid() >> 32;
	struct record *known = bpf_map_lookup_elem(&records, &pid);
	struct record new = { .count = 1, .last = (__u32)args->flags, .flags = (__u16)args->flags };

	new.modes[0] = (__u8)args->mode;
	new.modes[1] = (__u8)(args->mode >> 8);
	kinds[kind(args->flags)]++;
	total += new.flags;
	if (!known) {
		bpf_map_update_elem(&records, &pid, &new, 0);
		return label[0];
	}
	known->count++;
	known->last = new.last;
	known->flags |= new.flags;
	known->modes[0] = new.modes[0];
	known->modes[1] = new.modes[1];
	return 0;
}
