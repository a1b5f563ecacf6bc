// SPDX-License-Identifier: Apache-2.0
//! The messages between a client and its agent: one JSON object per datagram of a Unix `SOCK_SEQPACKET`
//! socket.
//!
//! A [`Request`] is `{"id": n, "op": "...", ...}`; its [`Reply`] is `{"id": n, "ok": {...}}` or `{"id": n,
//! "error": {"code", "message", "hint"}}`. Fields that a version does not know are ignored, so that fields
//! can be added; a change of meaning takes a new [`PROTOCOL_VERSION`].
//!
//! The reply to `hello` carries three descriptors, in this order ([`HELLO_FDS`]): the alive table
//! (read-only memfd), the session region (read-write memfd), and the source of events (a BPF ring buffer
//! map, or a timer that runs out when the session's inbox was filled).

use fide_types::MAX_NAME;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::net::Ipv4Addr;

/// Version spoken by this library; an agent that speaks another refuses `hello` with [`ErrorCode::Version`].
pub const PROTOCOL_VERSION: u32 = 2;
/// Longest message, both ways, in bytes.
pub const MESSAGE_MAX: usize = 64 << 10;
/// Where agents listen by default.
pub const DEFAULT_SOCKET: &str = "/run/fide/agent.sock";
/// Environment variable that names another socket.
pub const SOCKET_ENV: &str = "FIDE_SOCKET";
/// Descriptors that come with the reply to `hello`.
pub const HELLO_FDS: usize = 3;
/// With the doorbell, if the client has asked for it and the agent knows it.
pub const HELLO_FDS_MAX: usize = HELLO_FDS + 1;

/// A request: the operation, and a number that its reply repeats.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the client; the reply carries it.
    pub id: u64,
    /// The operation.
    #[serde(flatten)]
    pub op: Op,
}

/// The operations of an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Op {
    /// First message of a connection that wants memory and events; reply [`HelloOk`] with descriptors.
    /// `status`, `explain`, `metrics` and `events` need no `hello`.
    Hello {
        /// [`PROTOCOL_VERSION`].
        protocol: u32,
        /// Name of the program, for people.
        #[serde(default)]
        program: String,
        /// Token of an earlier session, to continue it.
        #[serde(default)]
        session: Option<String>,
        /// Asks for a fourth descriptor: the session's doorbell, an eventfd that wakes the agent for
        /// messages left in the session's memory.
        #[serde(default)]
        bell: bool,
    },
    /// Register a process to be watched (FiDe §3.1 `join`); reply [`JoinOk`].
    Join {
        /// Name, unique on this host: 1 to 31 of `A-Za-z0-9._-`.
        name: String,
        /// Process id; 0 for the caller.
        #[serde(default)]
        pid: u32,
        /// Without a beat for this long the process counts as stalled; 0: never.
        #[serde(default)]
        beat_timeout_us: u32,
    },
    /// Leave: the reverse of `join`, announced to others as `left`; reply [`Empty`].
    Quit {
        /// Slot given by `join`.
        slot: u8,
        /// Incarnation given by `join`: if another process has the slot since, nothing is done
        /// ([`ErrorCode::NotFound`]). Without it, any process in the slot.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        incarnation: Option<u32>,
    },
    /// Watch a process or host (FiDe §3.1 `monitor`); reply [`MonitorOk`].
    Monitor {
        /// `name@host`, or `@host` for the host itself.
        target: String,
        /// Wanted timeout; 0 for the best there is.
        #[serde(default)]
        timeout_us: u32,
        /// Wanted bytes of piggyback per heartbeat.
        #[serde(default)]
        pbsize: u16,
    },
    /// An agent before this one has reported the subject of a watch up as this incarnation, and not its
    /// end: deliver the end once it is certain, if there is one; reply [`Empty`].
    Former {
        /// Given by `monitor`.
        watch: u32,
        slot: u8,
        incarnation: u32,
        /// The timeout that was granted before.
        timeout_us: u32,
    },
    /// Stop watching; reply [`Empty`].
    Unmonitor {
        /// Given by `monitor`.
        watch: u32,
    },
    /// Ask for a lane (X-Lane Listing 1 `requestBandwidth`); reply [`LaneOk`], with the session's doorbell as
    /// descriptor. The answer comes when the lane can be used.
    OpenLane {
        /// Name on this host.
        name: String,
        /// The lane's terms.
        #[serde(flatten)]
        asked: LaneAsked,
    },
    /// Other terms for a lane (`changeBandwidth`); reply [`LaneOk`].
    ChangeLane {
        /// Given by `open_lane`.
        handle: u8,
        /// The lane's terms.
        #[serde(flatten)]
        asked: LaneAsked,
    },
    /// Give a lane back (`releaseBandwidth`); reply [`Empty`].
    CloseLane {
        /// Given by `open_lane`.
        handle: u8,
    },
    /// Receive the messages of a service; reply [`Empty`].
    Listen {
        /// 1..=255.
        service: u8,
    },
    /// Stop receiving them; reply [`Empty`].
    Unlisten {
        /// 1..=255.
        service: u8,
    },
    /// Hand everything over to the agent that asks (`fide agent --takeover`): maps, sockets, sequence
    /// numbers. Only for the agent's own user and root.
    TakeOver {
        /// The step of the takeover.
        phase: TakeOverPhase,
        /// Version of the asking agent; state is only handed to the same version.
        version: String,
    },
    /// State of the agent; reply: free-form JSON.
    Status {},
    /// Why a verdict was given; reply: free-form JSON.
    Explain {
        /// Event id.
        event: String,
    },
    /// Prometheus text; reply [`MetricsOk`].
    Metrics {},
    /// The times between the heartbeats of a peer; reply: free-form JSON, with a count for each bucket of
    /// times that is not empty, named by its shortest time in ns.
    Gaps {
        /// Name of the peer.
        host: String,
    },
    /// Recent events; reply [`EventsOk`].
    Events {
        /// Only events with a greater number.
        #[serde(default)]
        since: u64,
        /// Only events of this kind, such as "verdict".
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kind: Option<String>,
    },
}

/// A request for a lane (X-Lane Listing 1, `struct request`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneAsked {
    /// Names of hosts.
    pub receivers: Vec<String>,
    /// Longest message, in bytes.
    pub message_max_bytes: u32,
    /// Messages of that length in one packet.
    #[serde(default = "one")]
    pub messages_max: u32,
    /// Shortest time between two packets.
    pub period_ns: u64,
    /// Sub-lane; 0 is served first.
    #[serde(default)]
    pub priority: u8,
    /// Disjoint trees; by default as many as there are planes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redundancy: Option<u8>,
    /// The lane is refused rather than later than this at any receiver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_max_ns: Option<u64>,
}

fn one() -> u32 {
    1
}

/// The steps of a takeover, in order. Between the second and the third the old agent repeats its last
/// heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TakeOverPhase {
    /// Share maps and links; the old agent goes on as it is.
    Prepare,
    /// Freeze the state and hand it over.
    Switch,
    /// The new agent is ready: the old one stops, then answers, then the new one begins.
    Taken,
}

/// A reply. Build with [`Reply::ok`] or [`Reply::error`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// Number of the request; 0 if the request was too broken to have one.
    pub id: u64,
    /// The outcome.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// The outcome of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was done.
    Ok(Value),
    /// It was refused.
    Error(Refusal),
}

/// A refusal: a code for programs, a message and a hint for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}{}{hint}", if hint.is_empty() { "" } else { "; " })]
pub struct Refusal {
    /// For programs.
    pub code: ErrorCode,
    /// What was wrong.
    #[serde(default)]
    pub message: String,
    /// How to correct it; may be empty.
    #[serde(default)]
    pub hint: String,
}

/// Why an agent refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// Agent and client speak different protocol versions; the message names both.
    Version,
    /// Another live process, or another lane, of this host has that name.
    NameTaken,
    /// The caller may not do that (join a process of another user, say).
    NotPermitted,
    /// No host of that name in the cluster.
    UnknownHost,
    /// The wanted timeout is below what this host was measured to hold; the message names that.
    TimeoutTooShort,
    /// A bound is reached (sessions, slots, watches, lanes, piggyback capacity).
    Full,
    /// The network cannot hold it; the message names the link.
    NoCapacity,
    /// No such slot, watch, event, process or lane.
    NotFound,
    /// The request could not be understood.
    BadRequest,
    /// The process or host is already dead, or the session is over.
    Gone,
    /// This agent or kernel cannot do it.
    NotSupported,
    /// A code of a later version.
    #[serde(other)]
    Other,
}

/// Reply to `hello`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HelloOk {
    /// Version the agent speaks.
    pub protocol: u32,
    /// Version of the agent, for people.
    #[serde(default)]
    pub agent_version: String,
    /// Name of the host.
    pub host: String,
    /// Its id in the cluster, 1..=64.
    pub host_id: u16,
    /// Incarnation of the agent.
    pub incarnation: u32,
    /// Token of the session. The one asked for: that session goes on, with its processes, watches and memory.
    /// Another: a new session, and the client registers everything again.
    pub session: String,
    /// The kind of the third descriptor.
    pub events: EventsVia,
    /// Heartbeat period.
    #[serde(default)]
    pub heartbeat_us: u32,
    /// Trust mode: "lease", "network", ...
    #[serde(default)]
    pub trust: String,
    /// All hosts of the cluster, by id from 1.
    #[serde(default)]
    pub members: Vec<HostInfo>,
}

/// A host of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostInfo {
    /// Its name.
    pub name: String,
    /// One address for each plane.
    pub addresses: Vec<Ipv4Addr>,
}

/// How events reach a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventsVia {
    /// Through a BPF ring buffer map.
    Bpf,
    /// Through the inbox of the session, with a timer.
    Shm,
}

/// Reply to `join`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinOk {
    /// Slot of the process on its host, 0..=63.
    pub slot: u8,
    /// Its incarnation.
    pub incarnation: u32,
    /// Largest piggyback it may send, in bytes.
    #[serde(default)]
    pub pbsize: u16,
}

/// Reply to `monitor`: the granted terms, and the target's state now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MonitorOk {
    /// Id of the watch, not 0.
    pub watch: u32,
    /// Host id of the target.
    pub host_id: u16,
    /// Timeout granted; at least the wanted one.
    pub timeout_us: u32,
    /// Piggyback size granted.
    #[serde(default)]
    pub pbsize: u16,
    /// The target's state now.
    pub state: PeerState,
    /// Its slot, 0xff for the host itself; meaningless while `unknown`.
    #[serde(default)]
    pub slot: u8,
    /// Its incarnation; 0 while `unknown`.
    #[serde(default)]
    pub incarnation: u32,
}

/// Reply to `open_lane` and `change_lane` (X-Lane Listing 1, `struct resources`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneOk {
    /// Names the lane in calls, events and the outbox.
    pub handle: u8,
    /// The controller's number.
    pub lane: u64,
    /// Largest packet.
    pub packet_max_bytes: u32,
    /// Longest message.
    pub message_max_bytes: u32,
    /// Shortest time between two packets.
    pub period_ns: u64,
    /// Whether the two below are bounds; else it is best effort.
    pub bounded: bool,
    /// Latency between hosts, at the nearest receiver.
    #[serde(default)]
    pub latency_min_ns: u64,
    /// In addition, at the farthest receiver.
    #[serde(default)]
    pub jitter_max_ns: u64,
    /// Trees in use.
    pub trees: u8,
}

/// A target's state, as the agent knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeerState {
    /// Not seen yet: it need not have joined.
    Unknown,
    /// Alive.
    Alive,
    /// Dead or gone; an `up` follows when it comes back as a new incarnation.
    Dead,
}

/// Reply to `metrics`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricsOk {
    /// Prometheus exposition text.
    pub text: String,
}

/// Reply to `events`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventsOk {
    /// Oldest first; each a free-form object with its number in `seq`.
    pub events: Vec<Value>,
}

/// Reply to `quit` and `unmonitor`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Empty {}

impl Request {
    /// Reads a request. If it cannot be understood, returns the refusal to send back, with the id if there
    /// was one.
    ///
    /// # Errors
    /// A [`Reply`] with [`ErrorCode::BadRequest`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Reply> {
        let refuse = |id, message: String| {
            let hint = "a request is one JSON object {\"id\": number, \"op\": \"hello|join|quit|monitor|unmonitor|open_lane|change_lane|close_lane|listen|unlisten|status|explain|metrics|events\", ...}";
            Reply::error(id, Refusal::new(ErrorCode::BadRequest, message, hint))
        };
        if bytes.len() > MESSAGE_MAX {
            return Err(refuse(0, format!("message of {} bytes, at most {MESSAGE_MAX} are allowed", bytes.len())));
        }
        let value: Value = serde_json::from_slice(bytes).map_err(|error| refuse(0, format!("not JSON: {error}")))?;
        let id = value.get("id").and_then(Value::as_u64).unwrap_or(0);
        serde_json::from_value(value).map_err(|error| refuse(id, error.to_string()))
    }

    /// The bytes to send.
    pub fn to_bytes(&self) -> Vec<u8> {
        encode(self)
    }
}

impl Reply {
    /// A reply of success.
    pub fn ok(id: u64, result: &impl Serialize) -> Self {
        match serde_json::to_value(result) {
            Ok(value) => Self { id, outcome: Outcome::Ok(value) },
            Err(error) => Self::error(id, Refusal::new(ErrorCode::NotSupported, error.to_string(), "")),
        }
    }

    /// A reply of refusal.
    pub fn error(id: u64, refusal: Refusal) -> Self {
        Self { id, outcome: Outcome::Error(refusal) }
    }

    /// The bytes to send. A result that would make the message longer than [`MESSAGE_MAX`] is replaced by a
    /// refusal.
    pub fn to_bytes(&self) -> Vec<u8> {
        let bytes = encode(self);
        if bytes.len() <= MESSAGE_MAX {
            return bytes;
        }
        let message = format!("the answer has {} bytes, at most {MESSAGE_MAX} can be sent", bytes.len());
        encode(&Self::error(self.id, Refusal::new(ErrorCode::Full, message, "ask for less")))
    }

    /// Reads a reply.
    ///
    /// # Errors
    /// Why the bytes are no reply.
    pub fn parse(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    /// The result as a type, or the refusal; a result of another shape becomes a refusal of the client's
    /// own.
    ///
    /// # Errors
    /// The [`Refusal`].
    pub fn result<T: DeserializeOwned>(self) -> Result<T, Refusal> {
        match self.outcome {
            Outcome::Error(refusal) => Err(refusal),
            Outcome::Ok(value) => serde_json::from_value(value).map_err(|error| {
                let message = format!("the agent's answer has an unexpected shape: {error}");
                Refusal::new(ErrorCode::BadRequest, message, "agent and client are of different versions")
            }),
        }
    }
}

impl Refusal {
    /// A refusal.
    pub fn new(code: ErrorCode, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: hint.into() }
    }
}

/// Serializing these types cannot fail: their maps have string keys and no type of theirs refuses.
fn encode(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

/// Why a name or target is refused, and how to correct it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Empty, too long or with other characters.
    #[error("'{0}' is not a name: 1 to {MAX_NAME} characters of A-Z a-z 0-9 . _ - are")]
    Name(String),
    /// No `@`.
    #[error("'{0}' is not a target: use name@host for a process, @host for a host")]
    Target(String),
}

/// Checks a process or host name.
///
/// # Errors
/// [`NameError::Name`].
pub fn check_name(name: &str) -> Result<(), NameError> {
    let good = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(good) {
        return Err(NameError::Name(name.to_owned()));
    }
    Ok(())
}

/// Splits a target into process name (`None`: the host itself) and host name.
///
/// # Errors
/// [`NameError`].
pub fn parse_target(target: &str) -> Result<(Option<&str>, &str), NameError> {
    let (name, host) = target.split_once('@').ok_or_else(|| NameError::Target(target.to_owned()))?;
    check_name(host)?;
    if name.is_empty() {
        return Ok((None, host));
    }
    check_name(name)?;
    Ok((Some(name), host))
}

#[cfg(test)]
mod tests;
