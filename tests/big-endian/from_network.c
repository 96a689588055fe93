/* Like Cilium's from-network: a classifier that reads and writes fields of the context, whole and in part. */
#include "net.h"

struct __sk_buff {
	__u32 len, pkt_type, mark, queue_mapping, protocol, vlan_present, vlan_tci, vlan_proto, priority;
	__u32 ingress_ifindex, ifindex, tc_index, cb[5], hash, tc_classid, data, data_end, napi_id, family;
};

SEC("tc")
int from_network(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;

	if (data + sizeof(*eth) > end)
		return 2;
	skb->cb[0] = skb->ifindex;
	skb->cb[1] = bpf_ntohs(eth->proto);
	skb->cb[2] = 0;
	skb->cb[3] = 0;
	skb->cb[4] = 0;
	__u32 mark = skb->mark & 0xff;

	if (skb->protocol == bpf_htons(0x0800))
		mark |= 0x0200;
	if (skb->len > 1000 || (skb->len & 0xff) == 64)
		mark |= 0x0400;
	skb->mark = mark | (skb->cb[1] & 0xff) << 16;
	return skb->mark >> 8;
}
