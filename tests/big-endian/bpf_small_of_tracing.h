/* The arguments of a system call, as the tracepoint hands them over. */
#include "../../examples/bpf_small.h"

struct arguments {
	__u64 common;
	__u64 number;
	__u64 name;
	__u64 flags;
	__u64 mode;
};
