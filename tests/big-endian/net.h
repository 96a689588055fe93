/* Headers of packets, for the programs here: what they do with a packet is the same on machines of both byte orders. */
#include "../../examples/bpf_small.h"

#define bpf_ntohs bpf_htons
#define bpf_ntohl bpf_htonl

struct ethhdr {
	__u8 dst[6];
	__u8 src[6];
	__u16 proto;
};

struct iphdr {
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
	__u8 version : 4, ihl : 4;
#else
	__u8 ihl : 4, version : 4;
#endif
	__u8 tos;
	__u16 tot_len;
	__u16 id;
	__u16 frag_off;
	__u8 ttl;
	__u8 protocol;
	__u16 check;
	__u32 saddr;
	__u32 daddr;
};

struct ipv6hdr {
	__u32 flow;
	__u16 payload_len;
	__u8 nexthdr;
	__u8 hop_limit;
	__u32 saddr[4];
	__u32 daddr[4];
};

struct ports {
	__u16 source;
	__u16 dest;
};

enum { IPPROTO_TCP = 6, IPPROTO_UDP = 17 };
