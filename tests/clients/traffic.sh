#!/bin/bash
# Loads the XDP program of an object with xdp-loader onto one end of a pair of devices, sends datagrams to it from the other, and
# prints its maps. Runs in namespaces of its own (unshare -n -m): no device of the machine is touched.
#
#     traffic.sh FILE.o DATAGRAMS
set -e
mount -t tmpfs none /run
mkdir -p /run/netns
mount -t bpf none /sys/fs/bpf
ip netns add peer
ip link add here type veth peer name there netns peer
# Nothing but the datagrams: no neighbour discovery, no multicast.
echo 1 > /proc/sys/net/ipv6/conf/here/disable_ipv6
ip addr add 10.9.0.1/24 dev here
ip link set here up
ip netns exec peer sh -c 'echo 1 > /proc/sys/net/ipv6/conf/there/disable_ipv6'
ip -n peer addr add 10.9.0.2/24 dev there
ip -n peer link set there up
xdp-loader load -m skb -s xdp here "$1" >&2
xdp-loader status here >&2
ip netns exec peer bash -c 'for ((i = 0; i < '"$2"'; i++)); do echo x > /dev/udp/10.9.0.1/9; done'
sleep 0.2
id=$(ip -d link show here | sed -n 's/.*prog\/xdp id \([0-9]*\).*/\1/p')
for map in $(bpftool prog show id "$id" | sed -n 's/.*map_ids \([0-9,]*\).*/\1/p' | tr , ' '); do
	bpftool -j map dump id "$map"
done
xdp-loader unload here --all >&2
