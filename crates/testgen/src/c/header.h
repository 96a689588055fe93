/* What generated programs need of the kernel's and libbpf's headers. */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char s8;
typedef short s16;
typedef int s32;
typedef long long s64;

#define SEC(name) __attribute__((section(name), used))
#define noinline __attribute__((noinline))
#define __uint(name, val) int (*name)[val]
#define __type(name, val) typeof(val) *name
#define READ_ONCE(x) (*(volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, v) (*(volatile typeof(x) *)&(x) = (v))

struct xdp_md { u32 data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex; };
struct __sk_buff {
	u32 len, pkt_type, mark, queue_mapping, protocol, vlan_present, vlan_tci, vlan_proto, priority;
	u32 ingress_ifindex, ifindex, tc_index, cb[5], hash, tc_classid, data, data_end, napi_id, family;
	u32 remote_ip4, local_ip4, remote_ip6[4], local_ip6[4], remote_port, local_port, data_meta;
	u64 flow_keys, tstamp;
	u32 wire_len, gso_segs;
	u64 sk;
	u32 gso_size;
	u8 tstamp_type;
	u32 : 24;
	u64 hwtstamp;
};
struct bpf_spin_lock { u32 val; };
struct bpf_timer { u64 __opaque[2]; } __attribute__((aligned(8)));
struct bpf_dynptr { u64 __opaque[2]; } __attribute__((aligned(8)));

static void *(*bpf_map_lookup_elem)(void *, const void *) = (void *)1;
static long (*bpf_map_update_elem)(void *, const void *, const void *, u64) = (void *)2;
static long (*bpf_map_delete_elem)(void *, const void *) = (void *)3;
static u32 (*bpf_get_smp_processor_id)(void) = (void *)8;
static long (*bpf_skb_store_bytes)(void *, u32, const void *, u32, u64) = (void *)9;
static long (*bpf_tail_call)(void *, void *, u32) = (void *)12;
static long (*bpf_skb_load_bytes)(const void *, u32, void *, u32) = (void *)26;
static s64 (*bpf_csum_diff)(const void *, u32, const void *, u32, u32) = (void *)28;
static long (*bpf_map_push_elem)(void *, const void *, u64) = (void *)87;
static long (*bpf_map_pop_elem)(void *, void *) = (void *)88;
static long (*bpf_map_peek_elem)(void *, void *) = (void *)89;
static long (*bpf_spin_lock)(void *) = (void *)93;
static long (*bpf_spin_unlock)(void *) = (void *)94;
static long (*bpf_strtoul)(const char *, u64, u64, unsigned long *) = (void *)106;
static long (*bpf_probe_read_kernel)(void *, u32, const void *) = (void *)113;
static long (*bpf_ringbuf_output)(void *, void *, u64, u64) = (void *)130;
static void *(*bpf_ringbuf_reserve)(void *, u64, u64) = (void *)131;
static void (*bpf_ringbuf_submit)(void *, u64) = (void *)132;
static void (*bpf_ringbuf_discard)(void *, u64) = (void *)133;
static long (*bpf_for_each_map_elem)(void *, void *, void *, u64) = (void *)164;
static long (*bpf_snprintf)(char *, u32, const char *, u64 *, u32) = (void *)165;
static long (*bpf_timer_init)(void *, void *, u64) = (void *)169;
static long (*bpf_timer_set_callback)(void *, void *) = (void *)170;
static long (*bpf_timer_start)(void *, u64, u64) = (void *)171;
static long (*bpf_timer_cancel)(void *) = (void *)172;
static long (*bpf_loop)(u32, void *, void *, u64) = (void *)181;
static long (*bpf_strncmp)(const char *, u32, const char *) = (void *)182;
static long (*bpf_xdp_load_bytes)(void *, u32, void *, u32) = (void *)189;
static long (*bpf_xdp_store_bytes)(void *, u32, void *, u32) = (void *)190;
static long (*bpf_skb_set_tstamp)(void *, u64, u32) = (void *)192;
static void *(*bpf_map_lookup_percpu_elem)(void *, const void *, u32) = (void *)195;
static long (*bpf_dynptr_from_mem)(void *, u32, u64, void *) = (void *)197;
static long (*bpf_dynptr_read)(void *, u32, const void *, u32, u64) = (void *)201;
static long (*bpf_dynptr_write)(const void *, u32, void *, u32, u64) = (void *)202;
static void *(*bpf_dynptr_data)(const void *, u32, u32) = (void *)203;

struct S {
	u64 x;
	u32 y;
	s16 z;
	u8 w[6];
	u32 b1 : 3, b2 : 13, b3 : 16;
	s32 c1 : 7;
	u64 wide : 41;
	void *ptr;
};
struct V { u64 x, y; u32 seq, flag; u8 bytes[16]; };
struct L { struct bpf_spin_lock lock; u32 n; u64 sum; };
struct T { struct bpf_timer timer; u64 n; };
