// SPDX-License-Identifier: Apache-2.0
//! The types of the C ABI. Types that may grow begin with their size, set by the caller.

use libc::{c_char, c_int, c_void};

/// How to connect. Set `size` to sizeof(fide_options) and everything else to 0 for the defaults.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct FideOptions {
    /// sizeof(fide_options).
    pub size: usize,
    /// The agent's socket; NULL: $FIDE_SOCKET, else /run/fide/agent.sock.
    pub socket: *const c_char,
    /// Name of the program, shown to people; NULL: the executable's name.
    pub program: *const c_char,
    /// How long to spin before sleeping in fide_dispatch; 0: never.
    pub spin_ns: u64,
    /// How long a call waits for the agent's answer; 0: 5000.
    pub call_timeout_ms: u32,
}

/// A monitor's wishes, or what it was granted (FiDe, Listing 1: resources).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct FideResources {
    /// Timeout in microseconds; wanted: 0 for the shortest possible.
    pub timeout_us: u32,
    /// Piggyback bytes per heartbeat.
    pub pbsize: u32,
}

/// The state of a peer.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FideState {
    /// Not seen yet.
    Unknown = 0,
    /// Alive.
    Alive = 1,
    /// Dead, or gone.
    Dead = 2,
}

/// Why a verdict was given.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FideReason {
    /// No verdict (in on_up).
    None = 0,
    /// Exited by itself; `code` is the exit code. Certain.
    Exited = 1,
    /// Killed; `code` is the signal. Certain.
    Killed = 2,
    /// Said goodbye; no failure.
    Left = 3,
    /// No heartbeat of its host came within the timeout.
    HostSilent = 4,
    /// Its beats stopped; not final, no failure yet.
    Stalled = 6,
    /// Its beats came back.
    Recovered = 7,
}

/// A verdict: its subject, its reason, and how it is known. Valid during the upcall.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct FideVerdict {
    /// Monitor id.
    pub monitor: c_int,
    /// Why.
    pub reason: FideReason,
    /// "name@host" or "@host".
    pub target: *const c_char,
    /// Exit code or signal.
    pub code: i32,
    /// Incarnation of the subject.
    pub incarnation: u32,
    /// Host id of the subject.
    pub host_id: u16,
    /// Its slot; 255 for the host itself.
    pub slot: u8,
    /// Plane that the packet came on.
    pub plane: u8,
    /// 1 if delivered by the kernel's receive program itself.
    pub direct: u8,
    /// Sequence number of the last heartbeat of its host.
    pub seq: u64,
    /// CLOCK_MONOTONIC here when the packet was seen, or the verdict decided.
    pub rx_ns: u64,
    /// CLOCK_MONOTONIC of the subject's host at its exit; 0 unknown.
    pub at_ns: u64,
}

/// A piggybacked message. Valid during the upcall.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct FideMessage {
    /// Monitor id.
    pub monitor: c_int,
    /// Incarnation of the sender.
    pub incarnation: u32,
    /// "name@host" of the sender.
    pub target: *const c_char,
    /// The bytes.
    pub data: *const c_void,
    /// Number of bytes.
    pub len: usize,
    /// Number of the message, from 1 on in each incarnation.
    pub pb_seq: u64,
    /// CLOCK_MONOTONIC here when the packet was seen.
    pub rx_ns: u64,
}

/// The kind of a notice.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FideNoticeKind {
    /// This host must not act.
    Fenced = 1,
    /// This host may act again.
    Unfenced = 2,
    /// One plane (`value`) to `host_id` is silent; no death.
    PathLost = 3,
    /// That plane is back.
    PathRestored = 4,
    /// This host has incarnation `value` now: it was excluded, or its agent started anew. Others have
    /// declared dead everything that ran here. This program is fenced until fide_rejoined_acknowledge.
    Rejoined = 5,
    /// This observer did not run on time; its suspicion of `host_id` was withheld.
    ObserverStalled = 6,
    /// The agent went away; `text` says how. The library looks for it.
    Detached = 7,
    /// An agent is back; `value` 1: with the old session, 0: everything was registered again.
    Reattached = 8,
    /// A new agent refused to register `text` again: a process, monitor, lane or service.
    Dropped = 9,
    /// `value` events were lost in a full ring: ask fide_peer_state.
    Lost = 10,
    /// The thread of fide_start ends after this upcall; `text` says why. No more events follow until
    /// fide_start or fide_dispatch succeeds: close the handle and open another. Whether to act is still
    /// known.
    DispatchEnded = 11,
}

/// A permit to act: as what, and until when. Set `size` to sizeof(fide_permit).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct FidePermit {
    /// sizeof(fide_permit).
    pub size: usize,
    /// CLOCK_MONOTONIC at the time of asking.
    pub now_ns: u64,
    /// CLOCK_MONOTONIC after which it is over, unless asked for again; UINT64_MAX without limit.
    pub until_ns: u64,
    /// Id of the agreed view: the view with the larger `view_generation` is newer, and among equals the one
    /// with the larger `view_number`. Both 0: there is none (policy = "network").
    pub view_generation: u32,
    /// See `view_generation`.
    pub view_number: u32,
    /// Bit id-1: a member of the view.
    pub view_members: u64,
    /// CLOCK_MONOTONIC here from which no host acts by an older view. A program that takes a role over from
    /// a live host waits until then.
    pub view_settled_ns: u64,
    /// The incarnation that this host acts as.
    pub incarnation: u32,
    /// Id of this host.
    pub host_id: u16,
    /// 1: this host is the lowest member, and no other host acts as the lowest by an older view.
    pub lowest: u8,
    /// Zero.
    pub reserved: u8,
    /// The fencing token: 24 hexadecimal digits that sort as text, and a NUL. A resource should refuse a
    /// lower token than the highest it has seen. Empty without a view.
    pub token: [c_char; 25],
}

impl FidePermit {
    pub(super) fn of(size: usize, permit: &crate::Permit) -> Self {
        let view = permit.view;
        let mut token = [0; 25];
        if let Some(granted) = permit.token() {
            for (place, byte) in token.iter_mut().zip(granted.to_string().bytes()) {
                *place = byte.cast_signed() as c_char;
            }
        }
        Self {
            size,
            now_ns: permit.now_ns,
            until_ns: permit.until_ns,
            view_generation: view.map_or(0, |view| view.id.generation),
            view_number: view.map_or(0, |view| view.id.number),
            view_members: view.map_or(0, |view| view.members),
            view_settled_ns: view.map_or(0, |view| view.settled_ns),
            incarnation: permit.incarnation,
            host_id: permit.host_id,
            lowest: permit.is_lowest().into(),
            reserved: 0,
            token,
        }
    }
}

/// Any other event. Valid during the upcall.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct FideNotice {
    /// The kind of the notice.
    pub kind: FideNoticeKind,
    /// The host that it is about, if any.
    pub host_id: u16,
    /// Depends on the kind.
    pub value: u64,
    /// Depends on the kind; may be empty, never NULL.
    pub text: *const c_char,
}

/// Stands for a latency or jitter without bound (X-Lane, Listing 1: UNBOUNDED).
pub const FIDE_UNBOUNDED: i64 = -1;

/// Sub-lanes: a switch sends all packets of one before any packet of the next.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FideSubLane {
    /// The usual one.
    Services = 0,
    /// The sub-lane of heartbeats, before all others: for messages as short and as rare.
    Heartbeats = 1,
}

/// A request for a lane (X-Lane, Listing 1: request). Set `size` to sizeof(fide_lane_request) and unused
/// fields to 0.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct FideLaneRequest {
    /// sizeof(fide_lane_request).
    pub size: usize,
    /// Name of the lane on this host: 1 to 31 of A-Za-z0-9._-. Programs of one user that ask for the same
    /// share it.
    pub name: *const c_char,
    /// Names of the receiving hosts.
    pub receivers: *const *const c_char,
    /// Number of receivers.
    pub receivers_len: usize,
    /// Shortest time between two packets.
    pub period_ns: u64,
    /// The lane is refused rather than later than this at any receiver; 0: no bound.
    pub latency_max_ns: u64,
    /// Longest message, in bytes; at most 1160.
    pub message_max_bytes: u32,
    /// Messages of that length in one period; 0: one.
    pub messages_max: u32,
    /// A fide_sub_lane.
    pub sub_lane: u32,
    /// Disjoint trees, 1 or 2; 0: as many as this host has planes.
    pub redundancy: u32,
}

/// The resources that a lane grants (X-Lane, Listing 1: resources).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FideLaneResources {
    /// Shortest time between two packets.
    pub period_ns: u64,
    /// From the sending host to the nearest receiver; FIDE_UNBOUNDED without bounds.
    pub min_latency_ns: i64,
    /// In addition, to the farthest receiver; FIDE_UNBOUNDED without bounds.
    pub max_jitter_ns: i64,
    /// Largest packet.
    pub packet_max_bytes: u32,
    /// Longest message.
    pub message_max_bytes: u32,
    /// 1: the latency is bounded. 0: best effort.
    pub bounded: u8,
    /// Trees that its packets go over; 0 in on_bandwidth_changed, which does not report it.
    pub trees: u8,
}

/// Why a lane's terms have changed (X-Lane, Listing 1: Reason).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FideLaneReason {
    /// A reason of a later version.
    Other = 0,
    /// Traffic engineering: other lanes came, went or moved.
    Te = 1,
    /// It sent more than agreed: best effort from now on, until fide_lane_change.
    BwExceeded = 2,
    /// It used less than half of its bandwidth.
    BwUnused = 3,
}

/// A message that came over a lane. Valid during the upcall.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct FideLaneMessage {
    /// Host id of the sender.
    pub host_id: u16,
    /// 1 to 255.
    pub service: u8,
    /// Tree that the packet came over first.
    pub plane: u8,
    /// Incarnation of the sender's agent.
    pub incarnation: u32,
    /// Number of the packet: later packets of one sending lane have higher ones.
    pub seq: u64,
    /// CLOCK_MONOTONIC here when the packet was seen.
    pub rx_ns: u64,
    /// The bytes.
    pub data: *const c_void,
    /// Number of bytes.
    pub len: usize,
}

/// The functions to call (FiDe, Listing 1: upcalls). Set `size` to sizeof(fide_upcalls); NULL for unused
/// ones. The first argument of each is the one given to fide_set_upcalls.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct FideUpcalls {
    /// sizeof(fide_upcalls).
    pub size: usize,
    /// A target failed: exited, killed or host silent. Once per monitor and incarnation, never withdrawn.
    pub on_failure: Option<unsafe extern "C" fn(user: *mut c_void, verdict: *const FideVerdict)>,
    /// A message from a target.
    pub on_piggyback_rcv: Option<unsafe extern "C" fn(user: *mut c_void, message: *const FideMessage)>,
    /// The timeout granted to a monitor changed.
    pub on_timeout_changed: Option<unsafe extern "C" fn(user: *mut c_void, monitor: c_int, timeout_us: u32)>,
    /// A program (`watcher`: "name@host" as far as known, on the host `watcher_host_id`) monitors this
    /// process.
    pub on_monitor_req: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            process: c_int,
            watcher: *const c_char,
            watcher_host_id: u16,
            pbsize: u32,
        ),
    >,
    /// The piggyback size granted to this process changed.
    pub on_pbsize_changed: Option<unsafe extern "C" fn(user: *mut c_void, process: c_int, pbsize: u32)>,
    /// A target is alive in this incarnation; comes before any verdict on it. `reason` is none.
    pub on_up: Option<unsafe extern "C" fn(user: *mut c_void, verdict: *const FideVerdict)>,
    /// A target left, stalled or recovered: no failure.
    pub on_change: Option<unsafe extern "C" fn(user: *mut c_void, verdict: *const FideVerdict)>,
    /// Any other event.
    pub on_notice: Option<unsafe extern "C" fn(user: *mut c_void, notice: *const FideNotice)>,
    /// A message for a service that fide_listen was called for.
    pub on_lane_message: Option<unsafe extern "C" fn(user: *mut c_void, message: *const FideLaneMessage)>,
    /// A lane's terms have changed (X-Lane, Listing 1: bandwidthChanged). The previous terms hold for
    /// `grace_ns` more.
    pub on_bandwidth_changed: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            lane: c_int,
            resources: *const FideLaneResources,
            reason: FideLaneReason,
            grace_ns: u64,
        ),
    >,
    /// A lane is over after `grace_ns` more (X-Lane, Listing 1: bandwidthTerminated). `why` is for people.
    pub on_bandwidth_terminated: Option<
        unsafe extern "C" fn(user: *mut c_void, lane: c_int, name: *const c_char, why: *const c_char, grace_ns: u64),
    >,
}

impl Default for FideUpcalls {
    fn default() -> Self {
        Self {
            size: size_of::<Self>(),
            on_failure: None,
            on_piggyback_rcv: None,
            on_timeout_changed: None,
            on_monitor_req: None,
            on_pbsize_changed: None,
            on_up: None,
            on_change: None,
            on_notice: None,
            on_lane_message: None,
            on_bandwidth_changed: None,
            on_bandwidth_terminated: None,
        }
    }
}
