// SPDX-License-Identifier: Apache-2.0
//! The Rust side of `c/intf.h`, field for field. All times are CLOCK_MONOTONIC nanoseconds.

pub use fide_shm::gaps::Gaps;

/// Bounds, as in `intf.h`.
pub const MAX_HOSTS: usize = 64;
/// Process slots of one host.
pub const MAX_PROCESSES: usize = 64;
/// Planes of one cluster.
pub const MAX_PLANES: usize = 2;
/// Client sessions of one agent.
pub const MAX_CLIENTS: usize = 64;
/// UDP payload that fits an MTU of 1500 bytes.
pub const PAYLOAD_MAX: usize = 1472;
/// Processes that one agent can have the kernel watch.
pub const MAX_WATCHED: usize = 256;
/// Size of the ring that wakes the agent, in bytes.
pub const WAKE_RING_BYTES: u32 = 1024 * 1024;
/// Size of one client's ring, in bytes.
pub const CLIENT_RING_BYTES: u32 = 256 * 1024;

/// [`Admit::flags`]: arm the timer, this peer's silence matters here.
pub const ADMIT_MONITOR: u32 = 1;
/// [`Admit::flags`]: this incarnation is dead, refuse all it says.
pub const ADMIT_DEAD: u32 = 2;

/// [`Wake::kind`] of an exit seen by the kernel.
pub const WAKE_EXIT: u32 = 1;
/// [`Wake::kind`] of a peer whose timer ran out.
pub const WAKE_SILENCE: u32 = 2;
/// [`Wake::kind`] of an authenticated packet that the agent must read.
pub const WAKE_PACKET: u32 = 3;

/// [`Wake::detail`]: replay and liveness are done, the sections are to be read.
pub const PACKET_SECTIONS: u32 = 0;
/// [`Wake::detail`]: a newer incarnation than the one admitted.
pub const PACKET_UNADMITTED: u32 = 1;
/// [`Wake::detail`]: a notice; waiting clients may have been told already.
pub const PACKET_NOTICE: u32 = 2;
/// [`Wake::detail`]: a lane's packet, authentic and of the admitted incarnation.
pub const PACKET_CHUNKS: u32 = 3;
/// [`Wake::detail`]: the same, but its tag does not fit: damaged on the way, or anybody's.
pub const PACKET_DAMAGED: u32 = 4;

/// [`Wake::detail`]: what its sender takes the cluster to be, under the plain key.
pub const PACKET_SHAPE: u32 = 5;

/// One authentication key of the receive program.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Key {
    pub k0: u64,
    pub k1: u64,
    pub valid: u32,
    pub reserved: u32,
}

/// What the receive program knows about its host.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Config {
    pub me: u16,
    pub members: u16,
    pub port: u16,
    /// Counts takeovers, from 1: timers call back into the newest program.
    pub generation: u16,
    pub ifindex: [u32; MAX_PLANES],
    /// Planes are trees: each may come over any of these interfaces.
    pub any_plane: u32,
    /// Damaged packets of lanes reach the agent too.
    pub salvage: u32,
    pub keys: [Key; 2],
    /// Of packets that say what a host takes the cluster to be.
    pub plain: [Key; 2],
}

/// Which incarnation of a peer is heard, and whether its silence matters.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Admit {
    pub incarnation: u32,
    pub flags: u32,
    pub timeout_ns: u64,
}

/// Who waits for the death of one process.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Watch {
    pub claim: u64,
    pub clients: u64,
    pub undelivered: u64,
    pub piggyback_seq: u32,
    pub reserved: u32,
}

/// Newest heartbeat of one peer on one plane.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Slot {
    pub lock: u32,
    pub incarnation: u32,
    pub seq: u64,
    pub rx_ns: u64,
    pub received: u64,
    pub duplicate: u64,
    pub stale: u64,
    pub ack_incarnation: u32,
    pub ack_seq_low: u32,
    pub promise_us: u32,
    pub view_generation: u32,
    pub view_number: u32,
    /// 0: not in the steady form, the agent reads it from the sections.
    pub view_known: u32,
    pub reserved: [u32; 12],
}

/// Counters of the receive program.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    pub accepted: u64,
    pub malformed: u64,
    pub bad_tag: u64,
    pub foreign: u64,
    pub stale: u64,
    pub replayed: u64,
    pub wake_ring_full: u64,
    pub client_ring_full: u64,
    pub told_directly: u64,
    pub timer_fired: u64,
    pub exits_seen: u64,
    /// The next shape goes to the agent from then on.
    pub shape_next_ns: u64,
    pub reserved: [u64; 4],
}

/// Header of a record in the ring that wakes the agent; a packet's payload follows it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
pub struct Wake {
    pub kind: u32,
    pub len: u32,
    pub ns: u64,
    pub subject: u32,
    pub detail: u32,
    pub cookie: u64,
}

/// One process that the exit watch looks for.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
pub struct Watched {
    pub start_ticks: u64,
    pub slot: u32,
    pub reserved: u32,
    pub cookie: u64,
}

/// Bytes of the largest record in a client's ring: a 48-byte event header and its data.
pub const EVENT_MAX: usize = 48 + 1424;

/// Argument of the `tell` program.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub struct Tell {
    pub op: u32,
    pub subject: u32,
    pub len: u32,
    pub reserved: u32,
    pub event: [u8; EVENT_MAX],
}

/// [`Tell::op`]: to one client.
pub const TELL_ONE: u32 = 1;
/// [`Tell::op`]: a verdict to every client of a watch, once.
pub const TELL_WATCH: u32 = 2;
