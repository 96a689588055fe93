/* Like Cilium's recvmsg4 and connect6: an address is compared and replaced; keys of several fields, with their padding. */
#include "net.h"

struct bpf_sock_addr {
	__u32 user_family, user_ip4, user_ip6[4], user_port, family, type, protocol;
};

struct service {
	__u32 address;
	__u16 port;
	__u16 slot;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct service);
	__type(value, struct service);
	__uint(max_entries, 64);
} services SEC(".maps");

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
	struct service key = { .address = ctx->user_ip4, .port = (__u16)ctx->user_port };
	struct service *backend = bpf_map_lookup_elem(&services, &key);

	if (!backend) {
		key.address = 0;
		backend = bpf_map_lookup_elem(&services, &key);
	}
	if (!backend)
		return 1;
	ctx->user_ip4 = backend->address;
	ctx->user_port = backend->port;
	return 1;
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
	__u32 local = ctx->user_ip6[0] | ctx->user_ip6[1] | ctx->user_ip6[2] | (ctx->user_ip6[3] ^ bpf_htonl(1));

	if (local == 0 && ctx->user_port == bpf_htons(80))
		ctx->user_port = bpf_htons(8080);
	return 1;
}
