/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The only contract between the BPF programs and user space. The build
 * generates its Rust side from this file, and `wire.h`, the bounds and the
 * format of packets, from the Rust of fide-types and fide-wire.
 *
 * All times are CLOCK_MONOTONIC nanoseconds of this host.
 */
#ifndef FIDE_INTF_H
#define FIDE_INTF_H

#include "wire.h"

#define FIDE_MAX_WATCHED 256
/* Bound of the ring that wakes the agent: about 640 packets of full size. */
#define FIDE_WAKE_RING_BYTES (1024 * 1024)
/* Kept free for exits and silences, and for packets on other cores past the same check. */
#define FIDE_WAKE_RESERVE (64 * 1024)
/* Every watch of a host coming up at once, and as many wishes to watch its own programs, with the longest names. */
#define FIDE_CLIENT_RING_BYTES (256 * 1024)
/* Every so many packets of a stale or dead incarnation one reaches the agent. */
#define FIDE_STALE_SAMPLE 32

/* Shapes that reach the agent are at least so far apart; they are said again every second. */
#define FIDE_SHAPE_PAUSE_NS 1000000

/*
 * Buckets of gaps: 16 in every power of two from 1024 ns to 2^30 ns, one for what is shorter, one for what is longer.
 * fide-shm's `gaps` has the same.
 */
#define FIDE_GAP_OCTAVES 20
#define FIDE_GAP_BUCKETS (2 + 16 * FIDE_GAP_OCTAVES)

/* ---- from the agent to the programs ---- */

struct fide_key {
	__u64 k0;
	__u64 k1;
	__u32 valid; /* written last when a key is set, first when it is cleared */
	__u32 reserved;
};

struct fide_config {
	__u16 me;
	__u16 members;
	__u16 port; /* host byte order */
	__u16 generation; /* of the program: timers call back into the newest */
	__u32 ifindex[FIDE_MAX_PLANES]; /* 0: plane not received here */
	__u32 any_plane; /* planes are trees: each may come over any of these interfaces */
	__u32 salvage; /* damaged packets of lanes reach the agent too, for their chunks that are whole */
	struct fide_key keys[2];
	struct fide_key plain[2]; /* of packets that say what a host takes the cluster to be */
};

#define FIDE_ADMIT_MONITOR 1 /* arm the timer: its silence matters here */
#define FIDE_ADMIT_DEAD 2 /* this incarnation is dead: refuse all it says */

struct fide_admit {
	__u32 incarnation; /* 0: nobody admitted yet */
	__u32 flags;
	__u64 timeout_ns;
};

/* Who waits for the death of one process. */
struct fide_watch {
	__u64 claim; /* process incarnation << 32 | notified (0 or 1) */
	__u64 clients; /* bit c: notify client c */
	__u64 undelivered; /* bit c: its ring was full, the agent must retry */
	__u32 piggyback_seq; /* last piggyback delivered to the clients */
	__u32 reserved;
};

/* ---- from the programs to the agent ---- */

/* Newest heartbeat of one peer on one plane; `lock` is odd while it is written. */
struct fide_slot {
	__u32 lock;
	__u32 incarnation;
	__u64 seq;
	__u64 rx_ns;
	__u64 received; /* distinct heartbeats on this plane, this incarnation */
	__u64 duplicate; /* seen before on this plane: a replay or a copy */
	__u64 stale; /* from an older or dead incarnation */
	__u32 ack_incarnation; /* what the peer acknowledges of ours */
	__u32 ack_seq_low;
	__u32 promise_us;
	__u32 view_generation;
	__u32 view_number;
	__u32 view_known; /* 0: the agent reads it from the sections */
	__u32 reserved[12];
};

/*
 * Times between two fresh heartbeats of a peer, by whichever plane: a timeout would have run out as often as there are
 * longer ones. Only the receive program writes it, under the lock of the peer.
 */
struct fide_gaps {
	__u64 last_ns; /* 0: the next heartbeat ends no gap */
	__u64 longest_ns;
	__u64 longest_at_ns;
	__u64 sum_ns;
	__u32 incarnation;
	__u32 reserved;
	__u64 counts[FIDE_GAP_BUCKETS];
};

struct fide_stats {
	__u64 accepted;
	__u64 malformed;
	__u64 bad_tag;
	__u64 foreign; /* unknown sender, own packet, or plane of another interface */
	__u64 stale;
	__u64 replayed;
	__u64 wake_ring_full;
	__u64 client_ring_full;
	__u64 notified_directly;
	__u64 timer_fired;
	__u64 exits_seen;
	__u64 shape_next_ns; /* the next shape goes to the agent from then on */
	__u64 reserved[4];
};

/* ---- records in the ring that wakes the agent ---- */

#define FIDE_WAKE_EXIT 1
#define FIDE_WAKE_SILENCE 2
#define FIDE_WAKE_PACKET 3

/* FIDE_WAKE_PACKET's `detail`: why the agent must see it */
#define FIDE_PACKET_SECTIONS 0 /* liveness done; its sections are to be read */
#define FIDE_PACKET_UNADMITTED 1 /* an incarnation the agent has not admitted */
#define FIDE_PACKET_NOTICE 2
#define FIDE_PACKET_CHUNKS 3 /* of a lane, authentic and of the admitted incarnation */
#define FIDE_PACKET_SHAPE 5 /* what its sender takes the cluster to be, under the plain key */
#define FIDE_PACKET_DAMAGED 4 /* the same, but its tag does not fit: anybody may have written it */

struct fide_wake {
	__u32 kind;
	__u32 len; /* payload bytes behind this header (FIDE_WAKE_PACKET) */
	__u64 ns; /* when the program ran */
	__u32 subject; /* EXIT: slot; SILENCE: host id; PACKET: plane */
	__u32 detail; /* EXIT: wait status; PACKET: see above */
	__u64 cookie; /* EXIT: registration; SILENCE: last rx_ns */
};

struct fide_watched {
	__u64 start_ticks; /* starttime of /proc/PID/stat: distinguishes a reused pid */
	__u32 slot;
	__u32 reserved;
	__u64 cookie;
};

/* ---- records in a client's ring; the layout is fide-shm's EventRecord ---- */

#define FIDE_EVENT_VERDICT 2
#define FIDE_REASON_EXITED 1
#define FIDE_REASON_KILLED 2
#define FIDE_EVENT_NOTIFIED_DIRECTLY 1

struct fide_event {
	__u32 kind;
	__u16 host;
	__u8 slot;
	__u8 reason;
	__u32 incarnation;
	__s32 code;
	__u64 seq;
	__u64 rx_ns;
	__u64 at_ns;
	__u32 watch;
	__u16 data_len;
	__u8 plane;
	__u8 flags;
};

/* The largest event: its data is a piggyback, padded to whole words. */
#define FIDE_EVENT_MAX (sizeof(struct fide_event) + (FIDE_PIGGYBACK_MAX + 7) / 8 * 8)

/* ---- argument of the `notify` program, in the map `outbox` ---- */

#define FIDE_NOTIFY_CLIENT 1 /* `event` to client `subject` */
#define FIDE_NOTIFY_WATCH 2 /* verdict to all clients of watch `subject`, once */

#define FIDE_NOTIFIED 0
#define FIDE_NOTIFIED_BEFORE 1
#define FIDE_NOTIFIED_RING_FULL 2
#define FIDE_NOTIFIED_NOBODY 3

struct fide_notify {
	__u32 op;
	__u32 subject;
	__u32 len; /* bytes of `event` */
	__u32 reserved;
	__u8 event[FIDE_EVENT_MAX]; /* struct fide_event, then its data */
} __attribute__((aligned(8)));

#endif
