// SPDX-License-Identifier: Apache-2.0
//! What a cluster is, and which configurations are refused.

use fide_types::{
    HostId, HostSet, Policy, Role, Time, Trust, host_index,
    planted::{self, Planted},
};
use fide_wire::{
    ACK_LEN, HEADER_LEN, MAX_HOSTS, MAX_NAME, MAX_PLANES, MONITOR_LEN, Name, PAYLOAD_MAX, PIGGYBACK_MAX, ROSTER_LEN,
    SECTION_HEADER_LEN, VIEW_STEADY_LEN,
};
use serde::{Deserialize, Serialize};

/// One host of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// 1..=n, dense, in the order of [`Config::members`].
    pub id: HostId,
    pub name: Name,
    pub role: Role,
    /// The hosts whose silence this one judges.
    pub monitors: HostSet,
}

/// Everything a [`crate::Detector`] has to know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    pub me: HostId,
    /// Must be higher than any earlier incarnation of this host, and should be higher than those of hosts
    /// that started earlier. Seconds since 1970 are both.
    pub incarnation: u32,
    pub members: Vec<Member>,
    /// 1 or 2.
    pub planes: u8,
    pub heartbeat_ns: u64,
    pub trust: Trust,
    pub policy: Policy,
    /// Initial timeout for every pair: TO of FiDe §3.3, see [`timeout_ns`]. If an earlier incarnation of this
    /// host may have promised more, call [`crate::Detector::heed_former`].
    pub timeout_ns: u64,
    /// A gap between two ticks above `heartbeat_ns + stall_slack_ns` is a stall of this observer.
    pub stall_slack_ns: u64,
    /// Bound on how much faster one host's clock runs than another's, parts per million (lease margin).
    pub drift_ppm: u32,
    /// Upper limit of the piggyback grant, bytes.
    pub piggyback_max: usize,
    /// The largest packet that every plane carries, bytes; at most [`PAYLOAD_MAX`].
    /// [`crate::Detector::set_payload_max`] changes it.
    pub payload_max: usize,
}

/// Bytes of a view section beside its three lists of members.
const VIEW_LEN_MAX: usize = 36;

/// Default of [`Config::drift_ppm`].
pub const DRIFT_PPM: u32 = 200;
/// The longest timeout, nanoseconds: an hour.
pub const TIMEOUT_NS_MAX: u64 = 3_600_000_000_000;

/// Why a configuration was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("the cluster has {count} members; 1 to {MAX_HOSTS} are possible")]
    Members { count: usize },
    #[error("member number {at} has id {id}; ids must be 1, 2, 3, ... in order")]
    Id { at: usize, id: HostId },
    #[error("two members are called {name}; names must differ")]
    DuplicateName { name: Name },
    #[error("this host's id {me} is not among the members")]
    UnknownMe { me: HostId },
    #[error("incarnation 0 means \"none\"; the lowest is 1")]
    Incarnation,
    #[error("member {id} monitors a host that is not a member, or itself")]
    Monitors { id: HostId },
    #[error("{planes} planes; 1 or {MAX_PLANES} are possible")]
    Planes { planes: u8 },
    #[error("heartbeat_ns is 0; it must be positive")]
    Heartbeat,
    #[error("the timeout, {}, must exceed the heartbeat, {}", Time::ns(*timeout_ns), Time::ns(*heartbeat_ns))]
    TimeoutTooShort { timeout_ns: u64, heartbeat_ns: u64 },
    #[error(
        "a timeout of {} is too short for trust = \"lease\": less the drift margin it must exceed two heartbeats \
         ({} each) so that an acknowledgement can come back; use at least {}, plus a round trip",
        Time::ns(*timeout_ns),
        Time::ns(*heartbeat_ns),
        Time::ns(*need_ns)
    )]
    LeaseTimeout { timeout_ns: u64, heartbeat_ns: u64, need_ns: u64 },
    #[error("a timeout of {} is above an hour; use less", Time::ns(*timeout_ns))]
    TimeoutTooLong { timeout_ns: u64 },
    #[error("drift_ppm {drift_ppm} must be below 100000")]
    Drift { drift_ppm: u32 },
    #[error("policy = majority: voter {id} must monitor every other voter, it does not monitor {missing}")]
    MajorityMonitors { id: HostId, missing: u16 },
    #[error("policy = majority needs at least one voter")]
    NoVoter,
    #[error("packets of {payload_max} bytes: the heartbeats of this cluster need {need} to {PAYLOAD_MAX}")]
    Payload { payload_max: usize, need: usize },
}

/// FiDe §3.3: TO = HB + latency_min (lambda) + 2 jitter_max (delta), all in nanoseconds.
pub fn timeout_ns(heartbeat_ns: u64, latency_min_ns: u64, jitter_max_ns: u64) -> u64 {
    heartbeat_ns.saturating_add(latency_min_ns).saturating_add(jitter_max_ns.saturating_mul(2))
}

impl Config {
    /// Returns the first thing that is wrong.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let count = self.members.len();
        if count == 0 || count > MAX_HOSTS {
            return Err(ConfigError::Members { count });
        }
        let all = HostSet::first(count);
        for (at, member) in self.members.iter().enumerate() {
            if usize::from(member.id) != at + 1 {
                return Err(ConfigError::Id { at: at + 1, id: member.id });
            }
            if self.members[..at].iter().any(|m| m.name == member.name) {
                return Err(ConfigError::DuplicateName { name: member.name });
            }
            if !member.monitors.minus(all).is_empty() || member.monitors.contains(member.id) {
                return Err(ConfigError::Monitors { id: member.id });
            }
        }
        if !all.contains(self.me) {
            return Err(ConfigError::UnknownMe { me: self.me });
        }
        if self.incarnation == 0 {
            return Err(ConfigError::Incarnation);
        }
        if self.planes == 0 || usize::from(self.planes) > MAX_PLANES {
            return Err(ConfigError::Planes { planes: self.planes });
        }
        if self.heartbeat_ns == 0 {
            return Err(ConfigError::Heartbeat);
        }
        let (timeout_ns, heartbeat_ns) = (self.timeout_ns, self.heartbeat_ns);
        if timeout_ns <= heartbeat_ns {
            return Err(ConfigError::TimeoutTooShort { timeout_ns, heartbeat_ns });
        }
        if timeout_ns > TIMEOUT_NS_MAX {
            return Err(ConfigError::TimeoutTooLong { timeout_ns });
        }
        if self.drift_ppm >= 100_000 {
            return Err(ConfigError::Drift { drift_ppm: self.drift_ppm });
        }
        if self.trust == Trust::Lease && self.lease_of(timeout_ns / 1000 * 1000) <= 2 * heartbeat_ns {
            let need_ns = 2 * heartbeat_ns + 2 * heartbeat_ns * u64::from(self.drift_ppm) / 900_000 + 2000;
            return Err(ConfigError::LeaseTimeout { timeout_ns, heartbeat_ns, need_ns });
        }
        if !(self.payload_min()..=PAYLOAD_MAX).contains(&self.payload_max) {
            return Err(ConfigError::Payload { payload_max: self.payload_max, need: self.payload_min() });
        }
        if self.policy == Policy::Majority {
            let voters = self.voters();
            if voters.is_empty() {
                return Err(ConfigError::NoVoter);
            }
            for id in voters.iter() {
                let watched = self.member(id).monitors.union(HostSet::only(id));
                if let Some(missing) = voters.minus(watched).iter().next() {
                    return Err(ConfigError::MajorityMonitors { id, missing });
                }
            }
        }
        Ok(())
    }

    /// The member with this id.
    ///
    /// Panics if there is none.
    pub(crate) fn member(&self, id: HostId) -> &Member {
        &self.members[host_index(id)]
    }

    /// The members that count in views.
    pub fn voters(&self) -> HostSet {
        self.members.iter().filter(|m| m.role != Role::Observer).map(|m| m.id).collect()
    }

    /// The witness' id; 0 if there is none.
    pub fn witness(&self) -> u16 {
        self.members.iter().find(|m| m.role == Role::Witness).map_or(0, |m| m.id)
    }

    /// A promise less the margin for drift: for how long after sending a heartbeat this host may act on its
    /// acknowledgement.
    pub fn lease_of(&self, promise_ns: u64) -> u64 {
        if planted::is(Planted::NoMargin) {
            return promise_ns;
        }
        // Rounded up, so that the margin is never too small.
        promise_ns - (promise_ns.saturating_mul(u64::from(self.drift_ppm))).div_ceil(1_000_000).min(promise_ns)
    }

    /// A span of this host's clock, measured by a clock that runs faster by the full drift bound.
    pub(crate) fn with_drift(&self, span_ns: u64) -> u64 {
        span_ns.saturating_add(span_ns.saturating_mul(u64::from(self.drift_ppm)).div_ceil(1_000_000))
    }

    /// The largest message that always fits beside the fixed parts of a heartbeat, bytes.
    ///
    /// Roster entries, wishes and a running change of view come first. They may delay a message of this size
    /// by some heartbeats, but never keep it out.
    pub fn piggyback_grant(&self) -> usize {
        let view = if self.policy == Policy::Majority { SECTION_HEADER_LEN + VIEW_STEADY_LEN } else { 0 };
        let promise = if self.trust == Trust::Lease { SECTION_HEADER_LEN + 4 } else { 0 };
        let fixed = HEADER_LEN + ACK_LEN * (self.members.len() - 1) + view + promise + SECTION_HEADER_LEN + 4;
        self.payload_max.saturating_sub(fixed).min(PIGGYBACK_MAX).min(self.piggyback_max)
    }

    /// The most that a heartbeat takes beside its roster entries and wishes, bytes.
    pub(crate) fn fixed_max(&self) -> usize {
        let voters = if self.policy == Policy::Majority { self.voters().len() } else { 0 };
        let view = if voters > 0 { SECTION_HEADER_LEN + VIEW_LEN_MAX + 3 * (8 + 4 * voters) } else { 0 };
        HEADER_LEN + ACK_LEN * (self.members.len() - 1) + view + 2 * (SECTION_HEADER_LEN + 4)
    }

    /// The smallest packet size that works, bytes: with room for the longest roster entry and one wish, every
    /// process becomes known in the end.
    pub fn payload_min(&self) -> usize {
        self.fixed_max() + SECTION_HEADER_LEN + ROSTER_LEN + MAX_NAME + SECTION_HEADER_LEN + MONITOR_LEN
    }
}

#[cfg(test)]
pub(crate) mod tests;
