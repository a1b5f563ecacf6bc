// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Heartbeat receive (FiDe §3.2 "Reactive, uninterrupted processing", §3.4).
 *
 * A packet on the cluster's port ends here: its tag is checked before anything
 * else is looked at, then a heartbeat updates its slot and arms the peer's timer
 * again, and a notice goes straight into the rings of the programs that wait for
 * that process. Only what the agent must decide about goes through `wake`.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/types.h>
#include <stdbool.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "gaps.h"
#include "intf.h"
#include "siphash.h"

#define CLOCK_MONOTONIC 1

struct peer {
	struct bpf_spin_lock lock;
	__u32 incarnation;
	struct bpf_timer timer;
	__u64 max_seq;
	__u64 window; /* bit i: max_seq - i was received on some plane */
	__u64 plane_max[FIDE_MAX_PLANES];
	__u32 timer_generation;
	__u32 reserved;
};

#define ARRAY(NAME, VALUE, ENTRIES, FLAGS)              \
	struct {                                        \
		__uint(type, BPF_MAP_TYPE_ARRAY);       \
		__uint(map_flags, FLAGS);               \
		__uint(max_entries, ENTRIES);           \
		__type(key, __u32);                     \
		__type(value, VALUE);                   \
	} NAME SEC(".maps")

ARRAY(config, struct fide_config, 1, BPF_F_MMAPABLE);
ARRAY(admits, struct fide_admit, FIDE_MAX_HOSTS, BPF_F_MMAPABLE);
ARRAY(slots, struct fide_slot, FIDE_MAX_HOSTS * FIDE_MAX_PLANES, BPF_F_MMAPABLE);
ARRAY(watches, struct fide_watch, FIDE_MAX_HOSTS * FIDE_MAX_PROCESSES, BPF_F_MMAPABLE);
ARRAY(gaps, struct fide_gaps, FIDE_MAX_HOSTS, BPF_F_MMAPABLE);
ARRAY(stats, struct fide_stats, 1, BPF_F_MMAPABLE);
ARRAY(outbox, struct fide_notify, 1, BPF_F_MMAPABLE);
ARRAY(peers, struct peer, FIDE_MAX_HOSTS, 0);

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fide_scratch);
} scratches SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, FIDE_WAKE_RING_BYTES);
} wake SEC(".maps");

struct client_ring {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, FIDE_CLIENT_RING_BYTES);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, FIDE_MAX_CLIENTS);
	__type(key, __u32);
	__array(values, struct client_ring);
} client_rings SEC(".maps");

/*
 * The 32-bit word at `offset` of the payload, 0 beyond `len`. The barrier keeps
 * the range check on the very register that is used, where the verifier sees it.
 */
static __always_inline __u32 payload_word(struct fide_scratch *scratch, __u32 offset, __u32 len)
{
	__u32 end = offset + 4;

	asm volatile("" : "+r"(offset));
	if (end > len || offset > FIDE_PAYLOAD_MAX - 4)
		return 0;
	return *(__u32 *)((void *)scratch->words + offset);
}

/* First word of a section: kind | slot << 8 | len << 16. */
#define SECTION_WORD(KIND, LEN) ((KIND) | (LEN) << 16)

#define COUNT(FIELD) __sync_fetch_and_add(&counters->FIELD, 1)

static __always_inline void wake_agent(struct fide_stats *counters, void *record, __u32 len, __u64 flags)
{
	if (bpf_ringbuf_output(&wake, record, len, flags))
		COUNT(wake_ring_full);
}

/* The peer's timer ran out: no fresh heartbeat on any plane for timeout_ns. */
static int on_silence(void *map, __u32 *key, struct peer *peer)
{
	__u32 zero = 0, host = *key, first = host * FIDE_MAX_PLANES, plane;
	struct fide_stats *counters = bpf_map_lookup_elem(&stats, &zero);
	struct fide_admit *admit = bpf_map_lookup_elem(&admits, &host);
	__u64 now = bpf_ktime_get_ns(), last = 0;
	struct fide_wake record = {
		.kind = FIDE_WAKE_SILENCE,
		.ns = now,
		.subject = host + 1,
	};

	(void)map;
	if (!counters || !admit || !(admit->flags & FIDE_ADMIT_MONITOR) || (admit->flags & FIDE_ADMIT_DEAD))
		return 0;
	for (plane = 0; plane < FIDE_MAX_PLANES; plane++) {
		__u32 index = first + plane;
		struct fide_slot *slot = bpf_map_lookup_elem(&slots, &index);

		if (slot && slot->incarnation == admit->incarnation && slot->rx_ns > last)
			last = slot->rx_ns;
	}
	/* The timeout was raised since the timer was armed. */
	if (last + admit->timeout_ns > now) {
		bpf_timer_start(&peer->timer, last + admit->timeout_ns - now, 0);
		return 0;
	}
	record.cookie = last;
	COUNT(timer_fired);
	wake_agent(counters, &record, sizeof(record), BPF_RB_FORCE_WAKEUP);
	return 0;
}

/* A fresh heartbeat came: what the timer of `on_silence` has waited for. Under the lock of the peer. */
static __always_inline void count_gap(struct fide_gaps *gap, __u32 incarnation, __u64 now, bool monitored)
{
	__u64 ns;
	__u32 bucket;

	if (!monitored) {
		gap->last_ns = 0;
		return;
	}
	if (gap->incarnation != incarnation) {
		gap->incarnation = incarnation;
		gap->last_ns = 0;
	}
	/* Planes are received on several cores: the later one may come here first. */
	if (now <= gap->last_ns)
		return;
	ns = now - gap->last_ns;
	if (gap->last_ns) {
		bucket = gap_bucket(ns);
		/* clang knows the bound and the verifier does not. */
		asm volatile("" : "+r"(bucket));
		if (bucket < FIDE_GAP_BUCKETS)
			gap->counts[bucket]++;
		gap->sum_ns += ns;
		if (ns > gap->longest_ns) {
			gap->longest_ns = ns;
			gap->longest_at_ns = now;
		}
	}
	gap->last_ns = now;
}

struct notification {
	struct fide_watch *watch;
	struct fide_event *event;
	struct fide_stats *counters;
	__u64 clients;
	__u32 result;
};

static int notify_client(__u32 client, struct notification *notification)
{
	struct fide_stats *counters = notification->counters;
	__u64 bit = 1ULL << (client & 63);
	void *ring;

	if (!(notification->clients >> (client & 63)))
		return 1;
	if (!(notification->clients & bit))
		return 0;
	ring = bpf_map_lookup_elem(&client_rings, &client);
	if (ring && !bpf_ringbuf_output(ring, notification->event, sizeof(*notification->event), BPF_RB_FORCE_WAKEUP))
		return 0;
	__sync_fetch_and_or(&notification->watch->undelivered, bit);
	COUNT(client_ring_full);
	notification->result = FIDE_NOTIFIED_RING_FULL;
	return 0;
}

/*
 * Puts `event` into the ring of every client of the watch, at most once per
 * process incarnation, whoever comes first: this program or the agent.
 */
static __always_inline __u32 notify_watch(struct fide_stats *counters, struct fide_watch *watch,
					struct fide_event *event)
{
	__u64 unclaimed = (__u64)event->incarnation << 32;
	struct notification notification = {
		.watch = watch,
		.event = event,
		.counters = counters,
		.result = FIDE_NOTIFIED,
	};

	if (watch->claim >> 32 != event->incarnation)
		return FIDE_NOTIFIED_NOBODY;
	if (__sync_val_compare_and_swap(&watch->claim, unclaimed, unclaimed | 1) != unclaimed)
		return FIDE_NOTIFIED_BEFORE;
	notification.clients = watch->clients;
	bpf_loop(FIDE_MAX_CLIENTS, notify_client, &notification, 0);
	return notification.result;
}

static __always_inline int receive_notice(struct fide_stats *counters, struct fide_scratch *scratch, __u32 len,
					  __u32 host)
{
	struct header *header = (void *)scratch->words;
	struct section *section = (void *)scratch->words + FIDE_HEADER_BYTES;
	struct roster *roster = (void *)scratch->words + FIDE_HEADER_BYTES + sizeof(*section);
	struct fide_event event = {};
	struct fide_watch *watch;
	__u64 flags = BPF_RB_FORCE_WAKEUP;
	__u32 index;

	if (len != FIDE_NOTICE_BYTES || header->ack_count || header->section_count != 1 || section->kind != FIDE_SECTION_ROSTER ||
	    section->len != sizeof(*roster) || section->slot >= FIDE_MAX_PROCESSES) {
		COUNT(malformed);
		return XDP_DROP;
	}
	index = host * FIDE_MAX_PROCESSES + section->slot;
	watch = bpf_map_lookup_elem(&watches, &index);
	/*
	 * Piggybacks come before the verdict of their sender: with some still on
	 * the way the agent has to tell the two in order.
	 */
	if (watch && (roster->state == FIDE_STATE_EXITED || roster->state == FIDE_STATE_KILLED) &&
	    roster->piggyback_seq == watch->piggyback_seq) {
		event.kind = FIDE_EVENT_VERDICT;
		event.host = host + 1;
		event.slot = section->slot;
		event.reason = roster->state == FIDE_STATE_EXITED ? FIDE_REASON_EXITED : FIDE_REASON_KILLED;
		event.incarnation = roster->incarnation;
		event.code = roster->code;
		event.seq = header->seq;
		event.rx_ns = scratch->wake.ns;
		event.at_ns = roster->at_ns;
		event.plane = header->plane;
		event.flags = FIDE_EVENT_NOTIFIED_DIRECTLY;
		switch (notify_watch(counters, watch, &event)) {
		case FIDE_NOTIFIED:
			COUNT(notified_directly);
			flags = BPF_RB_NO_WAKEUP;
			break;
		case FIDE_NOTIFIED_BEFORE:
			flags = BPF_RB_NO_WAKEUP;
			break;
		}
	}
	/* Nobody waits for it here: the agent reads it at its next turn, and takes no core from others now. */
	if (watch && !watch->clients)
		flags = BPF_RB_NO_WAKEUP;
	scratch->wake.detail = FIDE_PACKET_NOTICE;
	wake_agent(counters, scratch, sizeof(scratch->wake) + FIDE_NOTICE_BYTES, flags);
	return XDP_DROP;
}

static __always_inline int receive_heartbeat(struct fide_stats *counters, struct fide_config *cfg,
					     struct fide_admit *admit, struct fide_scratch *scratch, __u32 len,
					     __u32 host)
{
	struct header *header = (void *)scratch->words;
	__u32 plane = header->plane, index = host * FIDE_MAX_PLANES + plane, offset, ack;
	__u32 ack_incarnation = 0, ack_seq_low = 0, promise_us = 0, generation = 0, number = 0, view_known = 0;
	struct peer *peer = bpf_map_lookup_elem(&peers, &host);
	struct fide_slot *slot = bpf_map_lookup_elem(&slots, &index);
	struct fide_gaps *gap = bpf_map_lookup_elem(&gaps, &host);
	__u64 seq = header->seq, now = scratch->wake.ns;
	bool fresh = false, on_plane = false;
	__u32 steady;

	if (!peer || !slot || !gap)
		return XDP_DROP;
	/* No sender uses the number 0: the window below could not distinguish it from none. */
	if (!seq || header->ack_count + 1 != cfg->members ||
	    FIDE_HEADER_BYTES + (__u32)header->ack_count * FIDE_ACK_BYTES > len) {
		COUNT(malformed);
		return XDP_DROP;
	}
	/* Acknowledgements: every member but the sender, by ascending host id. */
	ack = cfg->me - 1;
	if (cfg->me > header->sender)
		ack--;
	ack_incarnation = payload_word(scratch, FIDE_HEADER_BYTES + ack * FIDE_ACK_BYTES, len);
	ack_seq_low = payload_word(scratch, FIDE_HEADER_BYTES + ack * FIDE_ACK_BYTES + 4, len);
	/* What steady heartbeats carry, in either order; anything else is the agent's. */
	offset = FIDE_HEADER_BYTES + header->ack_count * FIDE_ACK_BYTES;
	for (steady = 0; steady < 2; steady++) {
		__u32 word = payload_word(scratch, offset, len);

		if (word == SECTION_WORD(FIDE_SECTION_VIEW, 8)) {
			generation = payload_word(scratch, offset + 4, len);
			number = payload_word(scratch, offset + 8, len);
			view_known = 1;
			offset += 12;
		} else if (word == SECTION_WORD(FIDE_SECTION_PROMISE, 4)) {
			promise_us = payload_word(scratch, offset + 4, len);
			offset += 8;
		}
	}

	/*
	 * Sections that the agent cannot be given must not be acknowledged: the packet counts as
	 * lost on the way, and its sender carries them again.
	 */
	if (offset < len && bpf_ringbuf_query(&wake, BPF_RB_AVAIL_DATA) > FIDE_WAKE_RING_BYTES - FIDE_WAKE_RESERVE) {
		COUNT(wake_ring_full);
		return XDP_DROP;
	}

	bpf_spin_lock(&peer->lock);
	if (peer->incarnation != header->incarnation) {
		peer->incarnation = header->incarnation;
		peer->max_seq = 0;
		peer->window = 0;
		peer->plane_max[0] = 0;
		peer->plane_max[1] = 0;
	}
	if (seq > peer->max_seq) {
		__u64 ahead = seq - peer->max_seq;

		peer->window = ahead < FIDE_REPLAY_WINDOW ? peer->window << ahead | 1 : 1;
		peer->max_seq = seq;
		fresh = true;
	} else {
		__u64 behind = peer->max_seq - seq;

		if (behind < FIDE_REPLAY_WINDOW && !(peer->window & (1ULL << behind))) {
			peer->window |= 1ULL << behind;
			fresh = true;
		}
	}
	if (fresh)
		count_gap(gap, header->incarnation, now, admit->flags & FIDE_ADMIT_MONITOR);
	__sync_fetch_and_add(&slot->lock, 1);
	if (slot->incarnation != header->incarnation) {
		slot->incarnation = header->incarnation;
		slot->seq = 0;
		slot->received = 0;
	}
	if (seq > peer->plane_max[plane & 1]) {
		peer->plane_max[plane & 1] = seq;
		slot->seq = seq;
		slot->rx_ns = now;
		slot->ack_incarnation = ack_incarnation;
		slot->ack_seq_low = ack_seq_low;
		slot->promise_us = promise_us;
		slot->view_generation = generation;
		slot->view_number = number;
		slot->view_known = view_known;
		on_plane = true;
	}
	if (on_plane || fresh)
		slot->received++;
	else
		slot->duplicate++;
	__sync_fetch_and_add(&slot->lock, 1);
	bpf_spin_unlock(&peer->lock);

	if (!on_plane && !fresh) {
		COUNT(replayed);
		return XDP_DROP;
	}
	COUNT(accepted);
	if (!fresh)
		return XDP_DROP;
	if ((admit->flags & FIDE_ADMIT_MONITOR) && admit->timeout_ns) {
		if (peer->timer_generation != cfg->generation) {
			/* Refused for a timer that another generation made: it is there already. */
			bpf_timer_init(&peer->timer, &peers, CLOCK_MONOTONIC);
			bpf_timer_set_callback(&peer->timer, on_silence);
			peer->timer_generation = cfg->generation;
		}
		bpf_timer_start(&peer->timer, admit->timeout_ns, 0);
	}
	if (offset < len) {
		scratch->wake.detail = FIDE_PACKET_SECTIONS;
		if (len >= FIDE_HEADER_BYTES && len <= FIDE_PAYLOAD_MAX)
			wake_agent(counters, scratch, sizeof(scratch->wake) + len, BPF_RB_FORCE_WAKEUP);
	}
	return XDP_DROP;
}

/*
 * A lane's packet (X-Lane 4.1): the agent delivers it to the programs. What is there must not keep heartbeats' sections out, so the
 * ring's reserve is not for it.
 */
static __always_inline int receive_chunks(struct fide_stats *counters, struct fide_scratch *scratch, __u32 len,
					  __u32 detail)
{
	if (bpf_ringbuf_query(&wake, BPF_RB_AVAIL_DATA) > FIDE_WAKE_RING_BYTES - 2 * FIDE_WAKE_RESERVE) {
		COUNT(wake_ring_full);
		return XDP_DROP;
	}
	scratch->wake.detail = detail;
	if (len >= FIDE_HEADER_BYTES && len <= FIDE_PAYLOAD_MAX)
		wake_agent(counters, scratch, sizeof(scratch->wake) + len, BPF_RB_FORCE_WAKEUP);
	return XDP_DROP;
}

/*
 * Shown to people only, and not asked for its number: may be recorded and sent again, so that few are let through.
 */
static __always_inline int receive_shape(struct fide_stats *counters, struct fide_scratch *scratch)
{
	__u64 now = scratch->wake.ns;

	if (now < counters->shape_next_ns ||
	    bpf_ringbuf_query(&wake, BPF_RB_AVAIL_DATA) > FIDE_WAKE_RING_BYTES - 2 * FIDE_WAKE_RESERVE)
		return XDP_DROP;
	counters->shape_next_ns = now + FIDE_SHAPE_PAUSE_NS;
	scratch->wake.detail = FIDE_PACKET_SHAPE;
	scratch->wake.subject = 0;
	scratch->wake.cookie = 0;
	wake_agent(counters, scratch, sizeof(scratch->wake) + FIDE_SHAPE_BYTES, BPF_RB_NO_WAKEUP);
	return XDP_DROP;
}

SEC("xdp")
int heartbeat_receive(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const __u32 payload_offset = sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct udphdr);
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);
	struct udphdr *udp = (void *)(ip + 1);
	struct fide_config *cfg;
	struct fide_stats *counters;
	struct fide_scratch *scratch;
	struct fide_admit *admit;
	struct header *header;
	__u32 zero = 0, host, len, key;
	__u64 tag;
	bool authentic = false, shape;

	if ((void *)(udp + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP) || ip->protocol != IPPROTO_UDP ||
	    ip->ihl != 5)
		return XDP_PASS;
	cfg = bpf_map_lookup_elem(&config, &zero);
	counters = bpf_map_lookup_elem(&stats, &zero);
	scratch = bpf_map_lookup_elem(&scratches, &zero);
	if (!cfg || !counters || !scratch || udp->dest != bpf_htons(cfg->port))
		return XDP_PASS;

	len = bpf_ntohs(udp->len);
	if (len < sizeof(*udp) + FIDE_HEADER_BYTES || len > sizeof(*udp) + FIDE_PAYLOAD_MAX ||
	    ip->frag_off & bpf_htons(0x3fff)) {
		COUNT(malformed);
		return XDP_DROP;
	}
	len -= sizeof(*udp);
	/* clang may fold the range above away from the value the verifier sees. */
	asm volatile("" : "+r"(len));
	if (len < FIDE_HEADER_BYTES || len > FIDE_PAYLOAD_MAX ||
	    bpf_xdp_load_bytes(ctx, payload_offset, scratch->words, len)) {
		COUNT(malformed);
		return XDP_DROP;
	}
	scratch->wake.kind = FIDE_WAKE_PACKET;
	scratch->wake.len = len;
	scratch->wake.ns = bpf_ktime_get_ns();

	header = (void *)scratch->words;
	tag = header->tag;
	header->tag = 0;
	/* Hosts with another idea of the cluster have other keys: a shape is all that they can exchange. */
	shape = len == FIDE_SHAPE_BYTES && header->version_kind == (FIDE_WIRE_VERSION << 4 | FIDE_KIND_SHAPE);
	for (key = 0; key < 2; key++) {
		struct fide_key *k = shape ? &cfg->plain[key] : &cfg->keys[key];

		if (k->valid && fide_siphash(scratch, len, k->k0, k->k1) == tag) {
			authentic = true;
			break;
		}
	}
	if (!authentic) {
		COUNT(bad_tag);
		if (!cfg->salvage || header->version_kind != (FIDE_WIRE_VERSION << 4 | FIDE_KIND_CHUNKS))
			return XDP_DROP;
	}
	header->tag = tag;
	if (header->magic != FIDE_WIRE_MAGIC || header->version_kind >> 4 != FIDE_WIRE_VERSION) {
		COUNT(malformed);
		return XDP_DROP;
	}
	if (shape)
		return receive_shape(counters, scratch);
	if (header->sender == 0 || header->sender > cfg->members || header->sender > FIDE_MAX_HOSTS ||
	    header->sender == cfg->me || header->plane >= FIDE_MAX_PLANES ||
	    (cfg->ifindex[header->plane & 1] != ctx->ingress_ifindex &&
	     !(cfg->any_plane && cfg->ifindex[~header->plane & 1] == ctx->ingress_ifindex))) {
		COUNT(foreign);
		return XDP_DROP;
	}
	host = header->sender - 1;
	scratch->wake.subject = header->plane;
	scratch->wake.cookie = 0;
	admit = bpf_map_lookup_elem(&admits, &host);
	if (!admit)
		return XDP_DROP;
	if (header->incarnation != admit->incarnation || admit->flags & FIDE_ADMIT_DEAD) {
		__u32 index = host * FIDE_MAX_PLANES + header->plane;
		struct fide_slot *slot = bpf_map_lookup_elem(&slots, &index);

		__u64 before = 0;

		/* A lane's packet is no sign of its host's life. */
		if ((header->version_kind & 15) == FIDE_KIND_CHUNKS) {
			if (authentic)
				COUNT(stale);
			return XDP_DROP;
		}

		if (header->incarnation <= admit->incarnation) {
			COUNT(stale);
			if (slot)
				before = __sync_fetch_and_add(&slot->stale, 1);
		}
		/* Of what a dead incarnation says the agent sees a sample, to answer that it is dead. */
		if (before % FIDE_STALE_SAMPLE == 0) {
			scratch->wake.detail = FIDE_PACKET_UNADMITTED;
			wake_agent(counters, scratch, sizeof(scratch->wake) + len, BPF_RB_FORCE_WAKEUP);
		}
		return XDP_DROP;
	}
	switch (header->version_kind & 15) {
	case FIDE_KIND_HEARTBEAT:
		return receive_heartbeat(counters, cfg, admit, scratch, len, host);
	case FIDE_KIND_NOTICE:
		return receive_notice(counters, scratch, len, host);
	case FIDE_KIND_CHUNKS:
		return receive_chunks(counters, scratch, len, authentic ? FIDE_PACKET_CHUNKS : FIDE_PACKET_DAMAGED);
	}
	COUNT(malformed);
	return XDP_DROP;
}

/*
 * The agent's way into a client's ring, so that a ring has one kind of producer:
 * it fills `outbox` through its mapping and runs this.
 */
SEC("syscall")
int notify(void *ctx)
{
	__u32 zero = 0, subject, len;
	struct fide_stats *counters = bpf_map_lookup_elem(&stats, &zero);
	struct fide_notify *args = bpf_map_lookup_elem(&outbox, &zero);

	(void)ctx;
	if (!counters || !args)
		return -1;
	subject = args->subject;
	if (args->op == FIDE_NOTIFY_WATCH) {
		struct fide_watch *watch = bpf_map_lookup_elem(&watches, &subject);

		if (!watch)
			return -1;
		return notify_watch(counters, watch, (struct fide_event *)args->event);
	}
	if (args->op == FIDE_NOTIFY_CLIENT) {
		void *ring = bpf_map_lookup_elem(&client_rings, &subject);

		if (!ring)
			return FIDE_NOTIFIED_NOBODY;
		len = args->len;
		if (len < sizeof(struct fide_event))
			return -1;
		/* Keeps the two checks apart: the verifier does not follow `len - 48 > max`. */
		asm volatile("" : "+r"(len));
		if (len > sizeof(args->event))
			return -1;
		if (bpf_ringbuf_output(ring, args->event, len, BPF_RB_FORCE_WAKEUP))
			return FIDE_NOTIFIED_RING_FULL;
		return FIDE_NOTIFIED;
	}
	return -1;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
