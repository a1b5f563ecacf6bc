// SPDX-License-Identifier: Apache-2.0
//! What the BPF programs and user space share: `c/intf.h`, from which the build generates these types. All times are
//! CLOCK_MONOTONIC nanoseconds of this host.

use fide_agent_api::event::{self, EventRecord};
use fide_types::{Reason, bounds};
use std::mem::offset_of;

use crate::generated::intf as generated;

pub use fide_shm::gaps::Gaps;

pub use generated::{
    ADMIT_DEAD, ADMIT_MONITOR, Admit, CLIENT_RING_BYTES, Config, Key, NOTIFY_CLIENT, NOTIFY_WATCH, Notify,
    PACKET_CHUNKS, PACKET_DAMAGED, PACKET_NOTICE, PACKET_SECTIONS, PACKET_SHAPE, PACKET_UNADMITTED, Slot, Stats,
    WAKE_EXIT, WAKE_PACKET, WAKE_RING_BYTES, WAKE_SILENCE, Wake, Watch, Watched,
};

/// Processes that one agent can have the kernel watch.
pub const MAX_WATCHED: usize = generated::MAX_WATCHED as usize;
/// Bytes of the largest record in a client's ring: an event's header and its data.
pub const EVENT_MAX: usize = event::EVENT_MAX;

// What `fide-shm` and `fide-agent-api` define and a BPF program writes.
const _: () = {
    use generated::{
        EVENT_NOTIFIED_DIRECTLY, EVENT_VERDICT, Event, GAP_BUCKETS, GAP_OCTAVES, REASON_EXITED, REASON_KILLED,
    };

    assert!(size_of::<Gaps>() == size_of::<generated::Gaps>());
    assert!(offset_of!(Gaps, last_ns) == offset_of!(generated::Gaps, last_ns));
    assert!(offset_of!(Gaps, longest_ns) == offset_of!(generated::Gaps, longest_ns));
    assert!(offset_of!(Gaps, longest_at_ns) == offset_of!(generated::Gaps, longest_at_ns));
    assert!(offset_of!(Gaps, sum_ns) == offset_of!(generated::Gaps, sum_ns));
    assert!(offset_of!(Gaps, incarnation) == offset_of!(generated::Gaps, incarnation));
    assert!(offset_of!(Gaps, counts) == offset_of!(generated::Gaps, counts));
    assert!(GAP_OCTAVES as usize == fide_shm::gaps::OCTAVES && GAP_BUCKETS as usize == fide_shm::gaps::BUCKETS);

    assert!(size_of::<EventRecord>() == size_of::<Event>());
    assert!(offset_of!(EventRecord, kind) == offset_of!(Event, kind));
    assert!(offset_of!(EventRecord, host) == offset_of!(Event, host));
    assert!(offset_of!(EventRecord, slot) == offset_of!(Event, slot));
    assert!(offset_of!(EventRecord, reason) == offset_of!(Event, reason));
    assert!(offset_of!(EventRecord, incarnation) == offset_of!(Event, incarnation));
    assert!(offset_of!(EventRecord, code) == offset_of!(Event, code));
    assert!(offset_of!(EventRecord, seq) == offset_of!(Event, seq));
    assert!(offset_of!(EventRecord, rx_ns) == offset_of!(Event, rx_ns));
    assert!(offset_of!(EventRecord, at_ns) == offset_of!(Event, at_ns));
    assert!(offset_of!(EventRecord, watch) == offset_of!(Event, watch));
    assert!(offset_of!(EventRecord, data_len) == offset_of!(Event, data_len));
    assert!(offset_of!(EventRecord, plane) == offset_of!(Event, plane));
    assert!(offset_of!(EventRecord, flags) == offset_of!(Event, flags));
    assert!(EVENT_VERDICT == event::kind::VERDICT && EVENT_NOTIFIED_DIRECTLY == event::FLAG_DIRECT as u32);
    assert!(REASON_EXITED == Reason::Exited(0).to_bytes().0 as u32);
    assert!(REASON_KILLED == Reason::Killed(0).to_bytes().0 as u32);
    assert!(size_of::<Notify>() == 16 + EVENT_MAX);
    assert!(generated::MAX_HOSTS as usize == bounds::MAX_HOSTS);
};
