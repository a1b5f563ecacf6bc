// SPDX-License-Identifier: Apache-2.0
//! One run of the ping-pong: the measurements and their conditions (jitter report §2.1).
//!
//! Host A sends packet `id`, host B answers it. Each packet has four time stamps in nanoseconds:
//! [`Stamp::Ts1`] just before the send at A, [`Stamp::Ts2`] at the receive at B, [`Stamp::Ts3`] just before
//! the send at B, [`Stamp::Ts4`] at the receive at A. `ts1` and `ts4` are read from A's clock, `ts2` and
//! `ts3` from B's. An unknown stamp is [`MISSING`].

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Stands in for an unknown time stamp: the packet was lost, or not sent.
pub const MISSING: i64 = i64::MIN;
/// Maximum number of clock faults that are kept one by one; further ones are only counted.
pub const FAULTS_MAX: usize = 4096;
/// A clock has jumped if it gains this much more than the packet ids account for, ns.
pub const JUMP_NS: i64 = 10_000_000_000;
/// Slack within which a clock that went back counts as wrapped, ns.
const WRAP_SLACK_NS: i128 = 50_000_000;

/// The two ends of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Host {
    /// Sends pings.
    A,
    /// Answers them.
    B,
}

impl Host {
    /// `a` or `b`.
    pub fn name(self) -> &'static str {
        match self {
            Host::A => "a",
            Host::B => "b",
        }
    }
}

/// One of the four moments of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stamp {
    /// Before the send at A.
    Ts1,
    /// At the receive at B.
    Ts2,
    /// Before the send at B.
    Ts3,
    /// At the receive at A.
    Ts4,
}

impl Stamp {
    /// All stamps, in the order in which a packet meets them.
    pub const ALL: [Stamp; 4] = [Stamp::Ts1, Stamp::Ts2, Stamp::Ts3, Stamp::Ts4];

    /// 0 to 3.
    pub fn index(self) -> usize {
        self as usize
    }

    /// `ts1` to `ts4`.
    pub fn name(self) -> &'static str {
        ["ts1", "ts2", "ts3", "ts4"][self.index()]
    }

    /// The host whose clock it is read from.
    pub fn host(self) -> Host {
        match self {
            Stamp::Ts1 | Stamp::Ts4 => Host::A,
            Stamp::Ts2 | Stamp::Ts3 => Host::B,
        }
    }
}

/// How the sender decides when the next packet is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Schedule {
    /// Packet `id` is due at `start + id * period`, whatever happened before.
    #[default]
    Absolute,
    /// A packet is due one period after the last one was sent (the busy loop of the jitter report §3.2).
    Relative,
}

impl std::fmt::Display for Schedule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Absolute => "absolute",
            Self::Relative => "relative",
        })
    }
}

/// The conditions of a run. They are written as JSON in a log; unknown fields are ignored, so that a newer
/// tool may add some.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunInfo {
    /// How packets were sent and received: `udp`, `af_xdp`, ...
    pub method: String,
    /// Sending interval, ns.
    pub period_ns: u64,
    /// When packets are due.
    pub schedule: Schedule,
    /// When packet 0 was due, on A's clock, ns (absolute schedule).
    pub start_ns: i64,
    /// Size of a packet, bytes.
    pub packet_bytes: u32,
    /// Name of host A.
    pub host_a: String,
    /// Name of host B.
    pub host_b: String,
    /// Start of the run, ns since 1970, for people to read.
    pub started_unix_ns: i64,
    /// True if A and B read the same clock (same host), so that `ts2 - ts1` is a latency.
    pub same_clock: bool,
    /// The core on which each stamp is taken, if its thread was pinned.
    pub cores: [Option<u32>; 4],
    /// Isolation measures and the state in which each was found: `governor` = `performance`, ...
    pub isolation: BTreeMap<String, String>,
    /// Version of the tool that measured.
    pub tool_version: String,
}

impl RunInfo {
    /// When packet `id` was due to be sent, on A's clock, ns. None for a relative schedule, where it depends
    /// on the packet before, and for ids whose time is out of range.
    pub fn due_ns(&self, id: u64) -> Option<i64> {
        if self.schedule == Schedule::Relative {
            return None;
        }
        let after = i128::from(id).checked_mul(i128::from(self.period_ns))?;
        i64::try_from(i128::from(self.start_ns).checked_add(after)?).ok().filter(|&t| t != MISSING)
    }
}

/// One packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Its number, counted from 0 and rising.
    pub id: u64,
    /// Time stamps by [`Stamp::index`], ns, or [`MISSING`].
    pub ts: [i64; 4],
    /// The same moments as seen by the network card, if it supports this, ns, or [`MISSING`].
    pub hw: [i64; 4],
}

impl Sample {
    /// A packet without hardware time stamps.
    pub fn new(id: u64, ts: [i64; 4]) -> Self {
        Sample { id, ts, hw: [MISSING; 4] }
    }

    /// True if no answer came.
    pub fn lost(&self) -> bool {
        self.ts[3] == MISSING
    }
}

/// How a clock or a counter misbehaved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// The clock went back from one packet to the next, or within one; for `ts2` and `ts4`, this also means
    /// that packets overtook each other.
    Backwards,
    /// It went back by (nearly) 2^32 or more of its units (ns, us): a counter that wrapped.
    Wrapped,
    /// It gained over [`JUMP_NS`] more than the ids account for.
    Jumped,
    /// Ids did not rise.
    Order,
}

/// One fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Row in which it shows.
    pub row: u64,
    /// The stamp in which it shows ([`Stamp::Ts1`] for ids).
    pub stamp: Stamp,
    /// What happened.
    pub kind: FaultKind,
    /// By how much, ns (for ids, their number).
    pub by: i64,
}

/// A new pong took over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restart {
    /// First row that it answered.
    pub row: u64,
    /// Its incarnation number.
    pub incarnation: u32,
}

/// All packets of a run, by columns: 40 bytes per packet, or 72 with all hardware time stamps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Samples {
    id: Vec<u64>,
    ts: [Vec<i64>; 4],
    hw: [Vec<i64>; 4],
    restarts: Vec<Restart>,
    faults: Vec<Fault>,
    faults_total: u64,
    last: [Option<(u64, i64)>; 4],
}

impl Samples {
    /// No packets yet.
    pub fn new() -> Self {
        Samples::default()
    }

    /// How many packets.
    pub fn len(&self) -> usize {
        self.id.len()
    }

    /// True without packets.
    pub fn is_empty(&self) -> bool {
        self.id.is_empty()
    }

    /// Adds a packet of a run with sending interval `period_ns`, and checks whether its clocks can be right.
    pub fn push(&mut self, sample: &Sample, period_ns: u64) {
        self.look(sample, period_ns);
        let row = self.len();
        self.id.push(sample.id);
        for i in 0..4 {
            self.ts[i].push(sample.ts[i]);
            // A column exists once it has a stamp.
            if !self.hw[i].is_empty() || sample.hw[i] != MISSING {
                self.hw[i].resize(row, MISSING);
                self.hw[i].push(sample.hw[i]);
            }
        }
    }

    /// States that pong `incarnation` answers the packets from here on. Nothing changes if it already does,
    /// or if `incarnation` is 0, which means that no pong has answered yet.
    pub fn restart(&mut self, incarnation: u32) {
        if incarnation == 0 || self.restarts.last().is_some_and(|r| r.incarnation == incarnation) {
            return;
        }
        self.restarts.push(Restart { row: self.len() as u64, incarnation });
        // The new pong is another process and may have another clock, so stamps are not compared across the
        // restart.
        self.last[Stamp::Ts2.index()] = None;
        self.last[Stamp::Ts3.index()] = None;
    }

    /// Packet `row`.
    pub fn get(&self, row: usize) -> Option<Sample> {
        let id = *self.id.get(row)?;
        let hw = std::array::from_fn(|i| self.hw[i].get(row).copied().unwrap_or(MISSING));
        Some(Sample { id, ts: std::array::from_fn(|i| self.ts[i][row]), hw })
    }

    /// Packet numbers.
    pub fn ids(&self) -> &[u64] {
        &self.id
    }

    /// All stamps of one kind, ns or [`MISSING`].
    pub fn stamps(&self, stamp: Stamp) -> &[i64] {
        &self.ts[stamp.index()]
    }

    /// The network card's stamps of one kind, if there are any; rows beyond the end of the slice are
    /// [`MISSING`].
    pub fn hardware(&self, stamp: Stamp) -> Option<&[i64]> {
        Some(self.hw[stamp.index()].as_slice()).filter(|c| !c.is_empty())
    }

    /// Which pong answered from which row on. More than one entry means that the pong restarted.
    pub fn restarts(&self) -> &[Restart] {
        &self.restarts
    }

    /// The first [`FAULTS_MAX`] clock faults.
    pub fn faults(&self) -> &[Fault] {
        &self.faults
    }

    /// Number of all clock faults.
    pub fn faults_total(&self) -> u64 {
        self.faults_total
    }

    fn look(&mut self, sample: &Sample, period_ns: u64) {
        let row = self.len() as u64;
        if let Some(&last) = self.id.last()
            && sample.id <= last
        {
            let by = i64::try_from(last - sample.id).unwrap_or(i64::MAX);
            self.fault(Fault { row, stamp: Stamp::Ts1, kind: FaultKind::Order, by });
        }
        for stamp in Stamp::ALL {
            let now = sample.ts[stamp.index()];
            if now == MISSING {
                continue;
            }
            if let Some((id, then)) = self.last[stamp.index()] {
                let gained = i128::from(now) - i128::from(then);
                let expected = i128::from(sample.id.saturating_sub(id)).saturating_mul(i128::from(period_ns));
                self.judge(row, stamp, gained, expected);
            }
            self.last[stamp.index()] = Some((sample.id, now));
        }
        // Within the packet: pairs of which the second is later on the same clock.
        for (early, late) in [(Stamp::Ts1, Stamp::Ts4), (Stamp::Ts2, Stamp::Ts3)] {
            let (from, to) = (sample.ts[early.index()], sample.ts[late.index()]);
            if from != MISSING && to != MISSING && to < from {
                self.judge(row, late, i128::from(to) - i128::from(from), 0);
            }
        }
    }

    fn judge(&mut self, row: u64, stamp: Stamp, gained: i128, expected: i128) {
        let wrapped = |unit: i128| {
            let size = (1_i128 << 32) * unit;
            let missing = expected.saturating_sub(gained);
            missing > size / 2
                && missing.saturating_add(size / 2).rem_euclid(size).abs_diff(size / 2) < WRAP_SLACK_NS as u128
        };
        let kind = match gained {
            g if g < 0 && (wrapped(1) || wrapped(1000)) => FaultKind::Wrapped,
            g if g < 0 => FaultKind::Backwards,
            g if g.saturating_sub(expected) > i128::from(JUMP_NS) => FaultKind::Jumped,
            _ => return,
        };
        let by = if gained < 0 { -gained } else { gained - expected };
        self.fault(Fault { row, stamp, kind, by: i64::try_from(by).unwrap_or(i64::MAX) });
    }

    fn fault(&mut self, fault: Fault) {
        self.faults_total += 1;
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(fault);
        }
    }
}

#[cfg(test)]
mod tests;
