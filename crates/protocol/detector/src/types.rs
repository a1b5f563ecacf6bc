// SPDX-License-Identifier: Apache-2.0
//! What goes into and comes out of a [`crate::Detector`].

use fide_types::{HostId, HostSet, MAX_PLANES, Name, ProcessState, Reason, Time};
use fide_wire::{PacketError, ViewId};
use serde::{Deserialize, Serialize};

/// The newest state of one (peer, plane), as the kernel's receive program keeps it: authenticated and
/// de-duplicated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beat {
    pub peer: HostId,
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
    /// The view its sender holds, if known. Without it the acknowledgement does not prolong a majority lease;
    /// the heartbeat's sections, fed to `handle_sections`, will.
    pub view: Option<ViewId>,
}

/// Why a host cannot go on as another incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RestartError {
    #[error("incarnation {incarnation} is not above the present one, {present}")]
    Incarnation { incarnation: u32, present: u32 },
    #[error(
        "this machine was put back to a snapshot, or runs twice: its programs would go on with an old memory; end them, then \
         start the agent again"
    )]
    PutBack,
}

/// What an accepted packet was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepted {
    /// A heartbeat not seen before.
    Heartbeat,
    /// The copy of a heartbeat already read, first on this plane. It shows that the plane works.
    Copy,
    Notice,
    /// Authentic, but perhaps recorded before this host started. Nothing of it was read ([`crate::echo`]).
    Unanswered,
}

/// Why a packet was refused. Each is counted in [`Counters`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("not a packet: {0}")]
    Malformed(PacketError),
    #[error("sent for plane {sent}, arrived on plane {arrived}; check the cabling of the planes")]
    WrongPlane { sent: u8, arrived: u8 },
    #[error("host {host} is not a member; add it to the configuration of this host")]
    NotAMember { host: HostId },
    #[error("it carries this host's own id {host}: another host uses that id, or the network returns what was sent")]
    OwnId { host: HostId },
    #[error("incarnation {incarnation} of host {host} is older than the known one, {current}")]
    StaleIncarnation { host: HostId, incarnation: u32, current: u32 },
    #[error("incarnation {incarnation} of host {host} was declared dead")]
    DeadIncarnation { host: HostId, incarnation: u32 },
    #[error("heartbeat {seq} of host {host} is a duplicate, or too old to tell")]
    Replayed { host: HostId, seq: u64 },
    #[error("it acknowledges {got} members, but this cluster has {want} besides the sender; the configurations differ")]
    Members { got: usize, want: usize },
}

impl From<PacketError> for Refusal {
    fn from(why: PacketError) -> Self {
        Self::Malformed(why)
    }
}

/// What was sent, accepted, refused and lost since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counters {
    pub heartbeats_sent: u64,
    /// The part of these that went out between two of the schedule.
    pub heartbeats_urgent: u64,
    pub notices_sent: u64,
    /// Slots of the schedule that passed while the loop was late.
    pub heartbeats_skipped: u64,
    pub heartbeats_accepted: u64,
    pub copies_accepted: u64,
    pub notices_accepted: u64,
    /// From peers that have not answered this incarnation yet: perhaps recordings, so no sign of life.
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
    /// Missing for good: given up after all planes had passed them, or because their host died first; or
    /// queued here when packets became too small for them.
    pub piggybacks_lost: u64,
    /// Refused to the local sender.
    pub piggybacks_declined: u64,
    /// No buffer was free when one arrived.
    pub piggybacks_no_buffer: u64,
    /// Events not delivered because the event queue was at its bound.
    pub events_lost: u64,
    /// Watches of peers forgotten because the table was at its bound.
    pub wishes_lost: u64,
}

/// What is known of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PeerState {
    /// Never heard, or heard but not (yet) a member of the view. There will be no verdict on it.
    Unknown,
    Up,
    Dead,
    Left,
}

/// What is known of one peer.
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

/// What is known of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessView {
    pub name: Name,
    pub incarnation: u32,
    pub state: ProcessState,
    pub at_ns: u64,
    /// Number of the last piggyback queued (local process) or delivered (process of a peer).
    pub pb_seq: u32,
}

/// The view held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ViewInfo {
    pub id: ViewId,
    pub members: HostSet,
}

/// Where a verdict came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Via {
    /// A notice of its host.
    Notice,
    /// A heartbeat of its host.
    Roster,
    /// This observer's timeout.
    Timeout,
    /// A majority agreed on a view without it.
    View,
    /// The goodbye of the host.
    Goodbye,
    /// A newer incarnation of it was heard.
    Superseded,
    /// It is a process of this very host.
    Local,
}

/// Why a verdict is believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    pub observer: HostId,
    pub via: Via,
    pub decided_ns: u64,
    /// Last heartbeat heard of the subject's host, and when one came last on each plane.
    pub last_seq: u64,
    pub last_rx_ns: [u64; MAX_PLANES],
    pub timeout_ns: u64,
    /// The end by the clock of the subject's host; 0 for unknown.
    pub at_ns: u64,
    /// Stalls of this observer so far, and how often it withheld a suspicion of the subject's host because of
    /// them.
    pub own_stalls: u64,
    pub withheld: u64,
    /// The hosts that support it: this one, or the members of the view that decided.
    pub votes: HostSet,
    /// The newer incarnation; 0 for none.
    pub superseded_by: u32,
    /// Piggybacks of the subject that never arrived.
    pub piggybacks_lost: u32,
}

/// A host or process has ended (or has stalled, or has recovered).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Counts from 1 at this observer.
    pub id: u64,
    pub host: HostId,
    /// [`fide_wire::HOST_SLOT`] for the host itself.
    pub slot: u8,
    /// Of the process, or of the host for the host itself.
    pub incarnation: u32,
    pub reason: Reason,
    pub evidence: Evidence,
}

/// Something that the caller has to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A host ([`fide_wire::HOST_SLOT`]) or process is up. Precedes anything else about that incarnation.
    Up {
        host: HostId,
        slot: u8,
        incarnation: u32,
        name: Name,
    },
    Verdict(Verdict),
    /// A message. `Detector::piggyback_bytes` lends its bytes until the next `poll_event`.
    Piggyback {
        host: HostId,
        slot: u8,
        incarnation: u32,
        pb_seq: u32,
        seq: u64,
        rx_ns: u64,
        len: u16,
        buffer: u16,
    },
    /// A plane is silent while the other one is heard: a network fault, never a death.
    PathLost {
        host: HostId,
        plane: u8,
    },
    PathRestored {
        host: HostId,
        plane: u8,
    },
    /// This observer did not run on time.
    ObserverStalled {
        gap_ns: u64,
        withheld: u32,
    },
    /// This node must not act any more.
    Fenced {
        lease_until_ns: u64,
    },
    Unfenced {
        lease_until_ns: u64,
    },
    /// The others go on without this incarnation: `restart` with a higher one. `by` is this host itself if
    /// its view can never have a majority again, or if a silent peer may have gone on without it.
    Excluded {
        by: u16,
        incarnation: u32,
    },
    /// `by` has acknowledged a heartbeat that this incarnation has yet to send: the machine was put back to a
    /// snapshot, or a clone of it runs. The incarnation is excluded. Nothing on this machine remembers what
    /// it has promised and agreed to since, so its programs have to end before anything starts again.
    PutBack {
        by: u16,
        incarnation: u32,
    },
    ViewChanged {
        id: ViewId,
        members: HostSet,
    },
    /// A client of a peer, or of this host, watches a local process (or this host, [`fide_wire::HOST_SLOT`]).
    MonitorRequest {
        host: HostId,
        watcher_slot: u8,
        slot: u8,
        timeout_us: u32,
        pbsize: u16,
    },
    TimeoutChanged {
        host: HostId,
        timeout_ns: u64,
    },
}

/// What to watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    pub host: HostId,
    /// `None`: the host itself.
    pub process: Option<Name>,
}

/// What a watcher asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wanted {
    /// 0 for the shortest possible.
    pub timeout_ns: u64,
    pub pbsize: u16,
}

/// What the watcher gets: the pair's timeout, and what fits into a heartbeat.
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
        "this host is the cluster's witness and keeps its incarnation when it restarts: processes would get the same numbers \
         again, and others could not tell a new one from an earlier one; join on another host"
    )]
    Witness,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProcessError {
    #[error("no process is joined in slot {slot}")]
    NotJoined { slot: u8 },
    #[error("the process in slot {slot} has ended; nothing can follow")]
    Ended { slot: u8 },
    #[error("host_silent is a conclusion of observers; a host cannot report it of its own process")]
    NotForLocal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PiggybackError {
    #[error("{size} bytes are too long; {granted} bytes are granted")]
    TooLarge { size: usize, granted: usize },
    #[error("{queued} messages already wait for a heartbeat; retry after the next one")]
    Full { queued: usize },
    #[error("no process is joined in slot {slot}")]
    NotJoined { slot: u8 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MonitorError {
    #[error("host {host} is not a member of the cluster")]
    UnknownHost { host: HostId },
    #[error("this host does not monitor host {host}; the configuration says who monitors whom")]
    NotMonitored { host: HostId },
    #[error(
        "a timeout of {} is shorter than the pair's, {}; ask for at least that, or 0 for the shortest",
        Time::ns(*wanted_ns),
        Time::ns(*granted_ns)
    )]
    TimeoutTooShort { wanted_ns: u64, granted_ns: u64 },
    #[error("all {bound} watches of this host are in use")]
    Full { bound: usize },
    #[error("no such watch")]
    NotFound,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TimeoutError {
    #[error("host {host} is not a peer of this host")]
    UnknownHost { host: HostId },
    #[error(
        "{} is below the present {}; under trust = \"lease\" a host that judges alone can only raise a timeout, because it \
         keeps its promises by it",
        Time::ns(*asked_ns),
        Time::ns(*present_ns)
    )]
    Lower { asked_ns: u64, present_ns: u64 },
}
