// SPDX-License-Identifier: Apache-2.0
//! The types of `fide_group.h`. Structs begin with their size, set by the caller, as they may grow.

use fide_group::{Identity, Reason, Standing};
use libc::{c_char, c_void};

/// Longest value of fide_group_propose under FIDE_GROUP_PROTOCOL_HSUC, in bytes.
pub const FIDE_GROUP_VALUE_MAX: usize = 1377;
/// Longest value of fide_group_propose under FIDE_GROUP_PROTOCOL_HUC, in bytes.
pub const FIDE_GROUP_HUC_VALUE_MAX: usize = 859;
/// Most hosts of a group.
pub const FIDE_GROUP_HOSTS_MAX: usize = 64;

/// An entry is its length, its kind, and its bytes.
const AROUND: usize = fide_group::batch::PREFIX_LEN + 1;
const _: () = assert!(FIDE_GROUP_VALUE_MAX == fide_group::VALUE_MAX - AROUND);
/// A decision of HUC begins with the set of members whose proposals it has.
const _: () = assert!(FIDE_GROUP_HUC_VALUE_MAX == fide_group::HUC_VALUE_MAX - size_of::<u64>() - AROUND);
const _: () = assert!(FIDE_GROUP_HOSTS_MAX == fide_types::MAX_HOSTS);

/// How members agree.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FideGroupProtocol {
    /// The leader proposes, and a decision takes one round trip.
    Hsuc = 0,
    /// Any member proposes, and a decision goes with the leader's next heartbeat.
    Huc = 1,
}

/// What a host is to its group.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FideStanding {
    /// No member yet, or excluded: it founds the group with the others, or has asked to be let in.
    Joining = 1,
    /// A member.
    Member = 2,
    /// A view without it was decided. The others may still need it: go on calling fide_group_wait.
    Leaving = 3,
    /// A view without it has begun: the process may end.
    Removed = 4,
    /// It has left.
    Left = 5,
    /// A decided payload is not stored here. This never happens; if it does, end the process and start it
    /// again.
    Lacking = 6,
}

impl From<Standing> for FideStanding {
    fn from(standing: Standing) -> Self {
        match standing {
            Standing::Joining | Standing::Excluded => Self::Joining,
            Standing::Member => Self::Member,
            Standing::Leaving => Self::Leaving,
            Standing::Removed => Self::Removed,
            Standing::Left => Self::Left,
            Standing::Lacking => Self::Lacking,
        }
    }
}

/// What was decided.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FideGroupEntry {
    /// A value of fide_group_propose.
    Value = 1,
    /// A payload of fide_group_propose_payload.
    Payload = 2,
    /// The members from the next position on; `data` is NULL.
    View = 3,
}

/// Why a host does not take a payload.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FideGroupReason {
    /// Longer than its payload_max_bytes.
    TooLong = 1,
    /// Longer than it ever has room for.
    BeyondRoom = 2,
    /// What arrived was not the payload, again and again.
    Wrong = 3,
    /// It dropped the payload before all of it had arrived.
    Forgotten = 4,
}

impl From<Reason> for FideGroupReason {
    fn from(reason: Reason) -> Self {
        match reason {
            Reason::TooLong => Self::TooLong,
            Reason::BeyondRoom => Self::BeyondRoom,
            Reason::Wrong => Self::Wrong,
            Reason::Forgotten => Self::Forgotten,
        }
    }
}

/// Which group, and how to be in it. Set `size` to sizeof(fide_group_options) and what is not needed to 0
/// or NULL. The same at all hosts, but for `state_dir`, `socket`, `program` and `call_timeout_ms`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct FideGroupOptions {
    /// sizeof(fide_group_options).
    pub size: usize,
    /// Name of the group, and of its processes: 1 to 31 of A-Za-z0-9._-.
    pub group: *const c_char,
    /// Names of the hosts that may be members. All of them have to be up once, for the group to begin.
    pub hosts: *const *const c_char,
    /// Number of hosts, 1 to FIDE_GROUP_HOSTS_MAX.
    pub hosts_len: usize,
    /// The secret of the group: 32 hexadecimal digits; white space around them is ignored.
    pub key: *const c_char,
    /// The directory in which this host keeps its record of the group; it is made if it is not there.
    pub state_dir: *const c_char,
    /// The agent's socket; NULL: $FIDE_SOCKET, else /run/fide/agent.sock.
    pub socket: *const c_char,
    /// Name of the program, shown to people; NULL: the executable's name.
    pub program: *const c_char,
    /// How long a call waits for the agent's answer; 0: 5000.
    pub call_timeout_ms: u32,
    /// A fide_group_protocol.
    pub protocol: u32,
    /// Instances under way at once under FIDE_GROUP_PROTOCOL_HSUC, 1 to 1024; 0: 32.
    pub window: u32,
    /// UDP port on each plane, at most 65535; 0: 7431.
    pub port: u32,
    /// Interval between two resends of unanswered messages; 0: 3000.
    pub resend_us: u32,
    /// 1: decisions are delivered once they are on the disks of most members, and the group comes back from them
    /// when all its processes have ended; 0: they are not stored. The same at all hosts.
    pub durable: u32,
    /// Most bytes of decisions that are kept while a host joins, at most `payload_max_bytes`; 0: 32 MiB.
    pub tail_max_bytes: u64,
    /// Longest payload and longest state, in bytes; 0: 64 MiB.
    pub payload_max_bytes: u64,
    /// Of a durable member: bytes of its log after which fide_group_wants_base is 1; 0: 64 MiB.
    pub compact_bytes: u64,
}

/// What identifies a payload.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FideGroupIdentity {
    /// Bytes of the payload, and of what the group adds to it.
    pub len: u64,
    /// Their BLAKE3.
    pub hash: [u8; 32],
}

impl FideGroupIdentity {
    pub(crate) const NONE: Self = Self { len: 0, hash: [0; 32] };
}

impl From<Identity> for FideGroupIdentity {
    fn from(identity: Identity) -> Self {
        Self { len: identity.len, hash: identity.hash }
    }
}

/// One decided entry. Set `size` to sizeof(fide_group_decision).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct FideGroupDecision {
    /// sizeof(fide_group_decision).
    pub size: usize,
    /// Position in the log, from 1. Several entries may have one position.
    pub position: u64,
    /// The bytes, as they were proposed; NULL for a view. Valid until the next call with this handle whose
    /// parameter is not const.
    pub data: *const c_void,
    /// Number of bytes.
    pub len: usize,
    /// What it is.
    pub entry: FideGroupEntry,
    /// Of a view: its number, from 1; else 0.
    pub view_number: u32,
    /// Of a view: bit id-1 for each member; else 0.
    pub view_members: u64,
    /// Of a payload; else zero.
    pub identity: FideGroupIdentity,
}

/// A state of the service. Set `size` to sizeof(fide_group_state).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct FideGroupState {
    /// sizeof(fide_group_state).
    pub size: usize,
    /// All decisions up to this position are in it.
    pub position: u64,
    /// The bytes, as a member gave them. Valid until the next call with this handle whose parameter is not
    /// const.
    pub data: *const c_void,
    /// Number of bytes.
    pub len: usize,
}

/// A payload that another host does not take. Set `size` to sizeof(fide_group_refusal).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct FideGroupRefusal {
    /// sizeof(fide_group_refusal).
    pub size: usize,
    /// Which payload.
    pub identity: FideGroupIdentity,
    /// Why.
    pub reason: FideGroupReason,
    /// The host.
    pub host_id: u16,
}

/// A member of a view.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FideGroupMember {
    /// Incarnation of the member, from 1.
    pub incarnation: u32,
    /// Its host.
    pub host_id: u16,
    /// Zero.
    pub reserved: u16,
}

/// The members that agree. Set `size` to sizeof(fide_group_view).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct FideGroupView {
    /// sizeof(fide_group_view).
    pub size: usize,
    /// Number of the view, from 1.
    pub number: u32,
    /// Number of members.
    pub members_len: u32,
    /// The members by seniority: a new one comes last.
    pub members: [FideGroupMember; FIDE_GROUP_HOSTS_MAX],
}

/// What a member has counted since it began. Set `size` to sizeof(fide_group_counters).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct FideGroupCounters {
    /// sizeof(fide_group_counters).
    pub size: usize,
    /// Packets without a valid tag of the group: of another key, or damaged.
    pub packets_refused: u64,
    /// Packets of processes that are not known to be up, any more or yet.
    pub packets_of_strangers: u64,
    /// Datagrams that the group refused, mostly as they are of another view; they are sent again.
    pub datagrams_refused: u64,
    /// Trains of packets given to the kernel.
    pub trains_sent: u64,
    /// Trains that the kernel did not take, of those.
    pub trains_lost: u64,
    /// Messages handed to the agent for a heartbeat.
    pub broadcasts_sent: u64,
    /// Messages for which a heartbeat had no room, of those; they are sent as packets later.
    pub broadcasts_declined: u64,
}
