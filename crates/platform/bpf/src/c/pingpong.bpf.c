// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Receiving for the jitter bench (jitter report §2.3): packets are stamped
 * where they arrive, and handed on through a slot, answered on the spot
 * ("XDP offload" in the report), or given to an AF_XDP socket.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/types.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "pingpong.h"

#define MAP(NAME, TYPE, VALUE, ENTRIES, FLAGS)    \
	struct {                                  \
		__uint(type, TYPE);               \
		__uint(map_flags, FLAGS);         \
		__uint(max_entries, ENTRIES);     \
		__type(key, __u32);               \
		__type(value, VALUE);             \
	} NAME SEC(".maps")

MAP(config, BPF_MAP_TYPE_ARRAY, struct fide_pp_config, 1, BPF_F_MMAPABLE);
MAP(slots, BPF_MAP_TYPE_ARRAY, struct fide_pp_slot, FIDE_PP_SLOTS, BPF_F_MMAPABLE);
MAP(state, BPF_MAP_TYPE_ARRAY, struct fide_pp_state, 1, BPF_F_MMAPABLE);
MAP(sockets, BPF_MAP_TYPE_XSKMAP, __u32, 64, 0);

static __always_inline void exchange(__u8 *a, __u8 *b, __u32 len)
{
	__u32 i;

	for (i = 0; i < len; i++) {
		__u8 byte = a[i];

		a[i] = b[i];
		b[i] = byte;
	}
}

static __always_inline int reflect(struct ethhdr *eth, struct iphdr *ip, struct udphdr *udp,
				   struct fide_pp_header *header, struct fide_pp_state *counters, __u32 incarnation,
				   __u64 now)
{
	__u16 port = udp->source;
	__u32 address = ip->saddr;

	if (header->kind != FIDE_PP_PING)
		return XDP_DROP;
	exchange(eth->h_source, eth->h_dest, ETH_ALEN);
	ip->saddr = ip->daddr;
	ip->daddr = address;
	udp->source = udp->dest;
	udp->dest = port;
	udp->check = 0;
	header->kind = FIDE_PP_PONG;
	header->ts2_ns = now;
	header->kernel_ns = now;
	header->incarnation = incarnation;
	__sync_fetch_and_add(&counters->reflected, 1);
	header->ts3_ns = bpf_ktime_get_ns();
	return XDP_TX;
}

/* Writes the time of arrival in front of the packet; pointers into it are void afterwards. */
static __always_inline void stamp(struct xdp_md *ctx, __u64 now)
{
	struct fide_pp_stamp *stamp;

	if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(*stamp)))
		return;
	stamp = (void *)(long)ctx->data_meta;
	if ((void *)(stamp + 1) > (void *)(long)ctx->data)
		return;
	stamp->magic = FIDE_PP_STAMP_MAGIC;
	stamp->rx_ns = now;
}

SEC("xdp")
int pingpong_receive(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u64 now = bpf_ktime_get_ns(), n;
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);
	struct udphdr *udp = (void *)(ip + 1);
	struct fide_pp_header *header = (void *)(udp + 1);
	struct fide_pp_config *cfg;
	struct fide_pp_state *counters;
	struct fide_pp_slot *slot;
	__u32 zero = 0, index;

	if ((void *)(udp + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP) || ip->protocol != IPPROTO_UDP ||
	    ip->ihl != 5 || ip->frag_off & bpf_htons(0x3fff))
		return XDP_PASS;
	cfg = bpf_map_lookup_elem(&config, &zero);
	counters = bpf_map_lookup_elem(&state, &zero);
	if (!cfg || !counters || udp->dest != bpf_htons(cfg->port))
		return XDP_PASS;
	if ((void *)(header + 1) > end || header->magic != FIDE_PP_MAGIC || header->version != FIDE_PP_VERSION) {
		__sync_fetch_and_add(&counters->malformed, 1);
		return XDP_DROP;
	}
	if (cfg->mode == FIDE_PP_MODE_REFLECT)
		return reflect(eth, ip, udp, header, counters, cfg->incarnation, now);
	if (cfg->mode == FIDE_PP_MODE_SOCKET) {
		stamp(ctx, now);
		return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
	}
	n = __sync_fetch_and_add(&counters->head, 1);
	index = n % FIDE_PP_SLOTS;
	slot = bpf_map_lookup_elem(&slots, &index);
	if (!slot)
		return XDP_DROP;
	__sync_lock_test_and_set(&slot->sequence, 2 * n + 1);
	slot->rx_ns = now;
	__builtin_memcpy(slot->header, header, FIDE_PP_HEADER);
	__sync_lock_test_and_set(&slot->sequence, 2 * n + 2);
	return XDP_DROP;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
