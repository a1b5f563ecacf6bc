// SPDX-License-Identifier: Apache-2.0
//! An agent's answers to `status` and `gaps`. Fields are added, never changed: [`SCHEMA`] stays while that
//! holds.
//!
//! Times ending in `_us` are microseconds, in `_ns` nanoseconds. Fields that an older agent did not send have
//! a default.

use fide_types::{Policy, Role, Trust};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::Value;

/// Layout of the answers.
pub const SCHEMA: u32 = 1;

/// Reply to `status`: an agent's report about itself, its peers and its clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Name of the cluster.
    pub cluster: String,
    /// Name of this host.
    pub host: String,
    pub host_id: u16,
    pub incarnation: u32,
    /// Version of the agent.
    pub version: String,
    /// Since the agent began.
    pub up_ns: u64,
    pub trust: Trust,
    pub policy: Policy,
    /// How the loop waits: `sleep` or `busy`.
    pub mode: String,
    pub heartbeat_us: u64,
    /// The agent's first timeout; each peer has its own.
    pub timeout_us: u64,
    /// Programs of this host may not act.
    pub fenced: bool,
    #[serde(default)]
    pub clock: Option<ClockStatus>,
    /// `None`: it does not run out.
    pub lease_left_us: Option<u64>,
    /// The others go on without this host, and it has not begun again.
    #[serde(default)]
    pub excluded: Option<ExcludedStatus>,
    pub view: ViewStatus,
    /// The largest lateness of this host's loop.
    pub own_lateness_max_us: u64,
    pub rungs: Rungs,
    /// Hosts whose configuration differs, so that this one does not hear them.
    #[serde(default)]
    pub differs: Vec<ConfiguredOtherwise>,
    pub peers: Vec<PeerStatus>,
    /// Programs of this host under watch.
    pub processes: Vec<LocalProcess>,
    pub clients: Vec<ClientStatus>,
    #[serde(default)]
    pub lanes: Vec<LaneStatus>,
    /// By name.
    pub counters: std::collections::BTreeMap<String, u64>,
}

/// Which clock leases are counted on, and which doubts it has raised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockStatus {
    /// `monotonic_raw`.
    pub counts_on: String,
    /// The kernel's time source; empty if it does not say.
    pub source: String,
    /// How much two hosts' clocks are assumed to drift apart.
    pub drift_ppm: u32,
    /// Whether the processor's counter is trusted as a witness.
    pub counter: String,
    /// Why it is, or is not.
    pub counter_why: String,
    /// Whether the hypervisor reports that it has moved this machine.
    pub told_of_moves: bool,
    /// How often the machine was suspended, and for how long.
    pub suspended: u64,
    pub suspended_us: u64,
    /// How often its clock stood still, and for how long.
    pub stopped: u64,
    pub stopped_us: u64,
    /// How often it was moved.
    pub moved: u64,
}

impl ClockStatus {
    /// How often the clock may have stood still.
    #[must_use]
    pub fn doubts(&self) -> u64 {
        self.suspended + self.stopped + self.moved
    }
}

/// Why an excluded host has not begun again, and when it tries next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExcludedStatus {
    pub why: String,
    pub attempts: u32,
    pub next_attempt_us: u64,
}

/// The agreed view of hosts; no members without one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewStatus {
    pub generation: u32,
    pub number: u32,
    /// Names of hosts.
    pub members: Vec<String>,
}

/// One ladder: the rung in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rung {
    /// The rung in use.
    pub used: String,
    /// Why it is not a better one; `None` on the best rung.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fell_back: Option<String>,
}

impl Rung {
    /// A rung, with the reason why it is not a better one.
    pub fn new(used: impl Into<String>, fell_back: Option<String>) -> Self {
        Self { used: used.into(), fell_back }
    }
}

/// All ladders of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rungs {
    /// One per plane.
    pub receive: Vec<Rung>,
    /// One per plane.
    pub send: Vec<Rung>,
    pub exit_watch: Rung,
    pub events: Rung,
    pub timer: Rung,
    /// The measurement that the timeout is based on.
    pub bound: Rung,
    pub core: Rung,
    pub priority: Rung,
    pub memory: Rung,
    pub c_states: Rung,
    pub isolated: Rung,
}

impl Rungs {
    /// Every ladder by the name of its field, ascending; a ladder of planes has a rung for each.
    #[must_use]
    pub fn by_name(&self) -> [(&'static str, &[Rung]); 11] {
        use std::slice::from_ref;
        [
            ("bound", from_ref(&self.bound)),
            ("c_states", from_ref(&self.c_states)),
            ("core", from_ref(&self.core)),
            ("events", from_ref(&self.events)),
            ("exit_watch", from_ref(&self.exit_watch)),
            ("isolated", from_ref(&self.isolated)),
            ("memory", from_ref(&self.memory)),
            ("priority", from_ref(&self.priority)),
            ("receive", &self.receive),
            ("send", &self.send),
            ("timer", from_ref(&self.timer)),
        ]
    }
}

/// A host whose configuration differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfiguredOtherwise {
    pub host: String,
    pub items: Vec<Difference>,
    /// The same in words.
    pub says: String,
}

/// One item in which two hosts differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// `cluster`, `members`, `trust`, `policy` or `name`.
    pub item: String,
    pub there: String,
    pub here: String,
}

/// The state of another host.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PeerStatus {
    pub host: String,
    pub id: u16,
    /// `unknown`, `up`, `dead` or `left`.
    pub state: String,
    /// `None` for a host that this one has nothing to do with.
    #[serde(flatten)]
    pub known: Option<KnownPeer>,
}

// A flattened option would take a peer that is not understood for one that is not known.
impl<'de> Deserialize<'de> for PeerStatus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Named {
            host: String,
            id: u16,
            state: String,
        }

        let fields = Value::deserialize(deserializer)?;
        let Named { host, id, state } = Named::deserialize(&fields).map_err(D::Error::custom)?;
        let known = match fields.get("incarnation") {
            Some(_) => {
                let known = KnownPeer::deserialize(&fields);
                Some(known.map_err(|error| D::Error::custom(format_args!("peer {host}: {error}")))?)
            }
            None => None,
        };
        Ok(Self { host, id, state, known })
    }
}

/// The state of a host that this one has to do with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KnownPeer {
    pub role: Role,
    /// Whether this host judges its silence.
    pub monitored: bool,
    pub incarnation: u32,
    /// Silent beyond its timeout, not (yet) declared dead.
    pub suspected: bool,
    pub timeout_us: u64,
    /// The parts of the timeout, unless the configuration fixes it.
    #[serde(default)]
    pub timeout_parts: Option<TimeoutParts>,
    /// The jitter of its heartbeats.
    pub jitter_us: u64,
    #[serde(default)]
    pub gaps: Option<GapsInShort>,
    pub network: PlannedNetwork,
    pub last_seq: u64,
    pub planes: Vec<PlaneStatus>,
    /// Processes were left out, so that the answer fits into a message.
    #[serde(default)]
    pub processes_left_out: bool,
    pub processes: Vec<ProcessStatus>,
}

/// The parts of a timeout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeoutParts {
    /// Heartbeat periods.
    pub periods: u64,
    /// Fastest ways of a packet.
    pub ways: u64,
    /// Jitters, of `jitter_ns` each.
    pub jitters: u64,
    pub jitter_ns: u64,
    /// The network's part of them, as the controller has planned it.
    pub network_ns: u64,
    pub jitter_of: JitterOf,
}

/// The origin of the hosts' part of a jitter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JitterOf {
    /// The least that such a host counts with.
    #[default]
    Least,
    /// One and a half times the recent jitter of heartbeats.
    Seen,
    /// One and a half times the lateness of this host's own loop.
    Own,
}

/// The gaps between the heartbeats of a peer. Times are at most 1/16 too long, except the longest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GapsInShort {
    pub count: u64,
    #[serde(default)]
    pub p50_us: u64,
    #[serde(default)]
    pub p99_us: u64,
    #[serde(default)]
    pub p999_us: u64,
    #[serde(default)]
    pub p9999_us: u64,
    pub longest_us: u64,
    /// `None` without any.
    pub longest_ago_us: Option<u64>,
}

/// What the planned network between two hosts adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedNetwork {
    pub latency_min_ns: u64,
    #[serde(default)]
    pub jitter_max_ns: u64,
}

/// One plane to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaneStatus {
    /// `None`: nothing was heard on it yet.
    pub silent_us: Option<u64>,
    pub received: u64,
    pub lost: u64,
    pub path_lost: bool,
}

/// A process of another host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessStatus {
    pub name: String,
    pub slot: u8,
    pub incarnation: u32,
    /// `alive`, `exited`, `killed`, `left`, `stalled` or `host_silent`.
    pub state: String,
    pub alive: bool,
}

/// A program of this host under watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalProcess {
    pub name: String,
    pub slot: u8,
    pub pid: u32,
    pub uid: u32,
    pub incarnation: u32,
    /// Program of the client that registered it, while it is connected.
    pub program: Option<String>,
}

/// A connected client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientStatus {
    pub program: String,
    pub pid: u32,
    pub uid: u32,
    pub watches: u32,
}

/// A lane of this host's programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneStatus {
    pub name: String,
    pub handle: u8,
    /// Trees in use.
    pub trees: usize,
    /// Programs that share it.
    pub clients: u32,
    pub period_ns: u64,
    pub packet_max_bytes: usize,
    pub packets: u64,
    pub messages: u64,
    /// Messages dropped because they were beyond the contract.
    pub exceeded: u64,
}

/// Reply to `gaps`: all buckets of the gaps between the heartbeats of one peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllGaps {
    pub schema: u32,
    pub host: String,
    pub count: u64,
    pub sum_ns: u64,
    pub longest_ns: u64,
    /// When it ended, on CLOCK_MONOTONIC.
    pub longest_at_ns: u64,
    pub now_ns: u64,
    /// The shortest gap of each bucket that is not empty, ns, and its count.
    pub buckets: Vec<(u64, u64)>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_peer_has_only_a_state() {
        let unknown = PeerStatus { host: "h2".to_owned(), id: 2, state: "unknown".to_owned(), known: None };
        let text = serde_json::to_value(&unknown).expect("plain data");
        assert_eq!(text, json!({ "host": "h2", "id": 2, "state": "unknown" }));
        assert_eq!(serde_json::from_value::<PeerStatus>(text).expect("a peer"), unknown);
        let strange = json!({ "host": "h2", "id": 2, "state": "up", "incarnation": 7, "role": "arbiter" });
        let error = serde_json::from_value::<PeerStatus>(strange).expect_err("no such role").to_string();
        assert!(error.contains("peer h2") && error.contains("arbiter"), "{error}");
    }

    #[test]
    fn ladders_are_listed_by_name() {
        let rung = || Rung::new("best", None);
        let rungs = Rungs {
            receive: vec![rung(), rung()],
            send: vec![rung()],
            exit_watch: rung(),
            events: rung(),
            timer: rung(),
            bound: rung(),
            core: rung(),
            priority: rung(),
            memory: rung(),
            c_states: rung(),
            isolated: rung(),
        };
        let json = serde_json::to_value(&rungs).expect("plain data");
        let names: Vec<&str> = rungs.by_name().iter().map(|(name, _)| *name).collect();
        assert_eq!(names, json.as_object().expect("an object").keys().collect::<Vec<_>>());
    }
}
