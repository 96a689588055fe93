/* Global data of all kinds, CO-RE relocations, several programs in one section, a loop. */
#include "bpf_small.h"

struct task_struct {
	int pid;
	int tgid;
	struct task_struct *real_parent;
} __attribute__((preserve_access_index));

struct pt_regs;

const volatile __u32 wanted_pid = 0;
const volatile char label[8] = "globals";
__u64 seen = 0;
__u64 hits[8];
__u32 limit = 12;
static __u32 last_parent = 7;

#define READ(dst, src) bpf_probe_read_kernel(&(dst), sizeof(dst), &(src))

SEC("tracepoint/syscalls/sys_enter_getpid")
int on_getpid(void *ctx)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct task_struct *parent = 0;
	int pid = 0;

	READ(parent, task->real_parent);
	if (parent)
		READ(pid, parent->tgid);
	last_parent = (__u32)pid;
	if (wanted_pid && wanted_pid != (__u32)(bpf_get_current_pid_tgid() >> 32))
		return 0;
	seen += 1;
	return 0;
}

SEC("tracepoint/syscalls/sys_enter_getpid")
int on_getpid_again(void *ctx)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 n = limit;

	if (n > 64)
		n = 64;
	for (__u32 i = 0; i < n; i++) {
		hits[i & 7] += now >> (i & 31);
		if (hits[i & 7] == last_parent)
			break;
	}
	return label[n & 7];
}

SEC("tracepoint/syscalls/sys_exit_getpid")
int on_exit(void *ctx)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	int pid = 0;

	READ(pid, task->pid);
	if (__builtin_preserve_field_info(task->tgid, 2))
		hits[1] = (__u64)pid;
	hits[0] = last_parent;
	return 0;
}

char _license[] SEC("license") = "GPL";
