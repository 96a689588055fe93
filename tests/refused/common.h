/* What the programs of this folder need beside the declarations of the examples. */
#ifndef REFUSED_COMMON_H
#define REFUSED_COMMON_H
#include "../../examples/bpf_small.h"

static long (*bpf_probe_read_user)(void *dst, __u32 size, const void *from) = (void *)112;
static long (*bpf_probe_read_user_str)(void *dst, __u32 size, const void *from) = (void *)114;
static __u32 (*bpf_get_smp_processor_id)(void) = (void *)8;
static __u32 (*bpf_get_prandom_u32)(void) = (void *)7;
static long (*bpf_ringbuf_output)(void *map, void *data, __u64 size, __u64 flags) = (void *)130;

struct ethhdr {
	__u8 dst[6];
	__u8 src[6];
	__u16 proto;
} __attribute__((packed));

struct iphdr {
	__u8 ihl : 4, version : 4;
	__u8 tos;
	__u16 len, id, frag;
	__u8 ttl, proto;
	__u16 check;
	__u32 src, dst;
};

struct tcphdr {
	__u16 source, dest;
	__u32 seq, ack;
	__u16 flags, window, check, urgent;
};

#define DATA(ctx) ((void *)(long)(ctx)->data)
#define DATA_END(ctx) ((void *)(long)(ctx)->data_end)

/* An array with one element, as programs use one for space. */
#define SPACE(name, T)                                 \
	struct {                                       \
		__uint(type, BPF_MAP_TYPE_ARRAY);      \
		__uint(max_entries, 1);                \
		__type(key, __u32);                    \
		__type(value, T);                      \
	} name SEC(".maps")

#define LICENSE char _license[] SEC("license") = "GPL"
#endif
