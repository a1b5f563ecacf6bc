// SPDX-License-Identifier: Apache-2.0
//! What goes into and comes out of a [`crate::Detector`].

use fide_types::ProcessState;
use fide_types::{HostSet, MAX_PLANES, Name, Reason, Time};
use fide_wire::{PacketError, ViewId};
use serde::{Deserialize, Serialize};

/// The newest state of one (peer, plane), as the kernel's receive program keeps it: authenticated, de-duplicated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beat {
    pub peer: u16,
    pub plane: u8,
    pub incarnation: u32,
    pub seq: u64,
    /// When it was received, on this host's clock.
    pub rx_ns: u64,
    /// Heartbeats of this incarnation received so far on this plane.
    pub received: u64,
    /// The acknowledgement it carries for this host.
    pub ack_incarnation: u32,
    pub ack_seq_low: u32,
    /// The promise it carries, 0 for none.
    pub promise_us: u32,
    /// The view its sender holds, if known. Without it the acknowledgement does not prolong a majority lease
    /// (the heartbeat's sections, handed to `handle_sections`, will).
    pub view: Option<ViewId>,
}

/// Why a host cannot go on as another incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RestartError {
    #[error("incarnation {incarnation} is not above the present one, {present}")]
    Incarnation { incarnation: u32, present: u32 },
    #[error(
        "this machine was put back to a snapshot, or has a clone: programs here would go on with what they remembered then"
    )]
    PutBack,
}

/// What became of a packet that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepted {
    /// A heartbeat not seen before.
    Heartbeat,
    /// The copy of a heartbeat already read, first on this plane: says that the plane works.
    Copy,
    Notice,
    /// Authentic, but perhaps recorded before this host started: nothing was read of it ([`crate::echo`]).
    Unanswered,
}

/// Why a packet was not taken. Each is counted in [`Counters`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("not a packet: {0}")]
    Malformed(PacketError),
    #[error("sent for plane {sent}, arrived on plane {arrived}; check the cabling of the planes")]
    WrongPlane { sent: u8, arrived: u8 },
    #[error("host {host} is not a member; add it to the configuration of this host")]
    NotAMember { host: u16 },
    #[error("it carries this host's own id {host}: another host uses it, or the network sends back what was sent")]
    OwnId { host: u16 },
    #[error("incarnation {incarnation} of host {host} is older than {current}, the one known")]
    StaleIncarnation { host: u16, incarnation: u32, current: u32 },
    #[error("incarnation {incarnation} of host {host} was declared dead")]
    DeadIncarnation { host: u16, incarnation: u32 },
    #[error("heartbeat {seq} of host {host} was seen before, or is too old to know")]
    Replayed { host: u16, seq: u64 },
    #[error("acknowledges {got} members, this cluster has {want} besides the sender; the configurations differ")]
    Members { got: usize, want: usize },
}

impl From<PacketError> for Refusal {
    fn from(why: PacketError) -> Self {
        Self::Malformed(why)
    }
}

/// What was refused, lost or bounded, since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counters {
    pub heartbeats_sent: u64,
    /// Of these, between two of the schedule.
    pub heartbeats_urgent: u64,
    pub notices_sent: u64,
    /// Slots of the schedule that passed while the loop was late.
    pub heartbeats_skipped: u64,
    pub heartbeats_accepted: u64,
    pub copies_accepted: u64,
    pub notices_accepted: u64,
    /// Of peers that have not answered this incarnation yet: perhaps recordings, so no sign of life.
    pub heartbeats_unanswered: u64,
    pub refused_malformed: u64,
    pub refused_wrong_plane: u64,
    pub refused_not_a_member: u64,
    pub refused_stale_incarnation: u64,
    pub refused_dead_incarnation: u64,
    pub refused_replayed: u64,
    pub stalls: u64,
    pub stalled_ns: u64,
    /// Suspicions that were due during a stall of this observer and were not raised.
    pub suspicions_withheld: u64,
    pub timer_hints: u64,
    pub verdicts: u64,
    pub piggybacks_sent: u64,
    pub piggybacks_delivered: u64,
    /// Missing for good: given up after both planes passed them, or their host died first, or queued here when packets
    /// became too small for them.
    pub piggybacks_lost: u64,
    /// Declined to the local sender.
    pub piggybacks_declined: u64,
    /// No buffer was free when one arrived.
    pub piggybacks_no_buffer: u64,
    /// Told nobody because the event queue was at its bound.
    pub events_lost: u64,
    /// Wishes of peers not remembered because the table was at its bound.
    pub wishes_lost: u64,
}

/// What is known of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PeerState {
    /// Never heard, or heard but not (yet) a member of the view: no verdict will be given.
    Unknown,
    Up,
    Dead,
    Left,
}

/// A look at one peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerView {
    pub state: PeerState,
    pub incarnation: u32,
    pub last_seq: u64,
    /// 0: never heard on that plane.
    pub last_rx_ns: [u64; MAX_PLANES],
    pub timeout_ns: u64,
    /// Planes silent while the other is heard.
    pub path_lost: [bool; MAX_PLANES],
    /// Heartbeats received and missing, per plane.
    pub received: [u64; MAX_PLANES],
    pub lost: [u64; MAX_PLANES],
    /// Silent beyond its timeout, not (yet) declared dead.
    pub suspected: bool,
    pub view: ViewId,
}

/// A look at one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessView {
    pub name: Name,
    pub incarnation: u32,
    pub state: ProcessState,
    pub at_ns: u64,
    /// Last piggyback given out (local) or delivered (remote).
    pub pb_seq: u32,
}

/// A look at the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ViewInfo {
    pub id: ViewId,
    pub members: HostSet,
}

/// Where a verdict came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Via {
    /// The host said so in a notice.
    Notice,
    /// The host said so in a heartbeat.
    Roster,
    /// This observer's timeout.
    Timeout,
    /// A majority agreed on a view without it.
    View,
    /// The host said goodbye.
    Goodbye,
    /// A newer incarnation of it was heard.
    Superseded,
    /// It is a process of this very host.
    Local,
}

/// Why a verdict is believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    pub observer: u16,
    pub via: Via,
    pub decided_ns: u64,
    /// Last heartbeat heard of the subject's host, and when, per plane.
    pub last_seq: u64,
    pub last_rx_ns: [u64; MAX_PLANES],
    pub timeout_ns: u64,
    /// The subject's own clock at its end; 0 unknown.
    pub at_ns: u64,
    /// Stalls of this observer so far, and suspicions of this host it withheld.
    pub own_stalls: u64,
    pub withheld: u64,
    /// The hosts behind it: this one, or the members of the view that decided.
    pub votes: HostSet,
    /// The newer incarnation; 0 for none.
    pub superseded_by: u32,
    /// Piggybacks of the subject that never arrived.
    pub piggybacks_lost: u32,
}

/// Who is dead (or stalled, or back).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Counts from 1 at this observer.
    pub id: u64,
    pub host: u16,
    /// [`fide_wire::HOST_SLOT`] for the host itself.
    pub slot: u8,
    /// Of the process, or of the host for the host itself.
    pub incarnation: u32,
    pub reason: Reason,
    pub evidence: Evidence,
}

/// What to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A host ([`fide_wire::HOST_SLOT`]) or process is there. Comes before anything else about that incarnation.
    Up {
        host: u16,
        slot: u8,
        incarnation: u32,
        name: Name,
    },
    Verdict(Verdict),
    /// The bytes are lent by `Detector::piggyback_bytes` until the next `poll_event`.
    Piggyback {
        host: u16,
        slot: u8,
        incarnation: u32,
        pb_seq: u32,
        seq: u64,
        rx_ns: u64,
        len: u16,
        buffer: u16,
    },
    /// A plane is silent while the other is heard: a network fault, never a death.
    PathLost {
        host: u16,
        plane: u8,
    },
    PathRestored {
        host: u16,
        plane: u8,
    },
    /// This observer did not run on time.
    ObserverStalled {
        gap_ns: u64,
        withheld: u32,
    },
    /// This node may not act any more.
    Fenced {
        lease_until_ns: u64,
    },
    Unfenced {
        lease_until_ns: u64,
    },
    /// The others go on without this incarnation: `restart` with a higher one. `by` is this host itself when it found
    /// that its view can never have a majority again, or that a peer that is silent may have gone on without it.
    Excluded {
        by: u16,
        incarnation: u32,
    },
    /// `by` has acknowledged a heartbeat that this incarnation has yet to send: its machine was put back to a snapshot, or a clone of it runs.
    /// It is excluded, and nothing on this machine remembers what it has promised and agreed to since: its programs have to end before
    /// anything starts again.
    PutBack {
        by: u16,
        incarnation: u32,
    },
    ViewChanged {
        id: ViewId,
        members: HostSet,
    },
    /// A peer wishes to watch a local process (or this host, [`fide_wire::HOST_SLOT`]).
    MonitorRequest {
        host: u16,
        watcher_slot: u8,
        slot: u8,
        timeout_us: u32,
        pbsize: u16,
    },
    TimeoutChanged {
        host: u16,
        timeout_ns: u64,
    },
}

/// What to watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    pub host: u16,
    /// `None`: the host itself.
    pub process: Option<Name>,
}

/// What a watcher would like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wanted {
    /// 0: the best there is.
    pub timeout_ns: u64,
    pub pbsize: u16,
}

/// What it gets: the pair's timeout, and what fits into a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granted {
    pub timeout_ns: u64,
    pub pbsize: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Joined {
    pub slot: u8,
    pub incarnation: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    #[error("{name} is already joined on this host, in slot {slot}; choose another name")]
    NameTaken { name: Name, slot: u8 },
    #[error(
        "all {} process slots are in use, or their last end is not yet known to every peer",
        fide_wire::MAX_PROCESSES
    )]
    Full,
    #[error("this host is leaving; join again after it is back")]
    Leaving,
    #[error(
        "this host is the cluster's witness: after a restart it is the same incarnation, so it would number its processes as before, and \
         others could not tell a process from an earlier one"
    )]
    Witness,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProcessError {
    #[error("no process is joined in slot {slot}")]
    NotJoined { slot: u8 },
    #[error("the process in slot {slot} has ended; nothing can follow")]
    Ended { slot: u8 },
    #[error("host_silent is what observers conclude, not what a host says of its own process")]
    NotForLocal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PiggybackError {
    #[error("{size} bytes, {granted} are granted")]
    TooLarge { size: usize, granted: usize },
    #[error("{queued} messages wait for a heartbeat already; retry after the next one")]
    Full { queued: usize },
    #[error("no process is joined in slot {slot}")]
    NotJoined { slot: u8 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MonitorError {
    #[error("host {host} is not a member of the cluster")]
    UnknownHost { host: u16 },
    #[error("this host does not monitor host {host}; the configuration says who monitors whom")]
    NotMonitored { host: u16 },
    #[error(
        "a timeout of {} is wanted, the pair's is {}; ask for at least that, or 0 for the best",
        Time::ns(*wanted_ns),
        Time::ns(*granted_ns)
    )]
    TimeoutTooShort { wanted_ns: u64, granted_ns: u64 },
    #[error("{bound} watches exist already, the most there can be")]
    Full { bound: usize },
    #[error("no such watch")]
    NotFound,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TimeoutError {
    #[error("host {host} is not a peer of this host")]
    UnknownHost { host: u16 },
    #[error(
        "{} is below the present {}; under a lease, who judges alone only ever raises it: a promise made stays kept",
        Time::ns(*asked_ns),
        Time::ns(*present_ns)
    )]
    Lower { asked_ns: u64, present_ns: u64 },
}
