// SPDX-License-Identifier: Apache-2.0
//! What operators see: FIDE.STATUS, FIDE.MEMBERS; [`super::info`] has the same facts.

use serde::Serialize;

use super::state::State;

/// FIDE.STATUS.
#[derive(Serialize)]
struct Status {
    mode: &'static str,
    host: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    leader: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leader_address: Option<String>,
    view: u32,
    members: Vec<String>,
    decided: u64,
    applied: u64,
    units: u64,
    unit_bytes: u64,
    commit_us: Percentiles,
    reads_waited: u64,
    reads_by_key: u64,
    disconnects: u64,
    failovers: u64,
    /// When this host knew of the death before the last take-over: CLOCK_MONOTONIC, ns.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_failover_at_ns: Option<u64>,
    handed_over: u64,
    numbered: Numbered,
    compared: Compared,
    version: Version,
    /// Of the dumps of this server's Redis.
    rdb_version: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_failover_us: Option<Failover>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_for: Option<String>,
    /// Servers that run and are refused, as they speak other versions or have other settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    refuses: Option<String>,
}

/// Comparisons of the servers' data.
#[derive(Serialize)]
struct Compared {
    count: u64,
    /// Those of which this server took no digest.
    skipped: u64,
    /// Those that found servers that differ.
    differed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    last: Option<LastCompared>,
}

#[derive(Serialize)]
struct LastCompared {
    number: u64,
    servers: usize,
    differ: Vec<String>,
}

/// Of the messages of this module.
#[derive(Serialize)]
struct Version {
    speaks: u8,
    /// The highest one that all servers speak.
    in_use: u8,
}

/// Answers to numbered requests: of how many clients, and a number that is the same where all answers are.
#[derive(Serialize)]
struct Numbered {
    clients: usize,
    digest: String,
}

#[derive(Serialize)]
struct Percentiles {
    p50: f64,
    p99: f64,
    max: f64,
}

/// Stages of the last take-over, from the moment in which this host knew of the death.
#[derive(Serialize)]
struct Failover {
    notified: f64,
    levelled: f64,
    leads: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_write: Option<f64>,
}

#[allow(clippy::cast_precision_loss, reason = "microseconds for people")]
fn us(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

fn percentiles(of: &[u64]) -> Percentiles {
    let mut sorted = of.to_vec();
    sorted.sort_unstable();
    let at = |percent: usize| us(sorted.get((sorted.len().saturating_sub(1)) * percent / 100).copied().unwrap_or(0));
    Percentiles { p50: at(50), p99: at(99), max: at(100) }
}

/// FIDE.STATUS.
pub(super) fn json(state: &mut State) -> String {
    serde_json::to_string(&status(state)).expect("numbers and words")
}

/// The same, to be taken apart.
pub(super) fn value(state: &mut State) -> serde_json::Value {
    serde_json::to_value(status(state)).expect("numbers and words")
}

fn status(state: &State) -> Status {
    let seen = &state.seen;
    let since = |ns: u64| us(ns.saturating_sub(seen.death_ns));
    let failover = (seen.death_ns > 0 && seen.promoted_ns > seen.death_ns).then(|| Failover {
        notified: since(seen.leads_ns),
        levelled: since(seen.levelled_ns),
        leads: since(seen.promoted_ns),
        first_write: (seen.first_write_ns > 0).then(|| since(seen.first_write_ns)),
    });
    let (view, hosts) = state.member.view().unwrap_or_default();
    let leader = state.leader();
    Status {
        mode: state.mode.name(),
        host: state.member.name(state.member.host()).unwrap_or_default(),
        leader: leader.as_ref().map(|(name, _)| name.clone()),
        leader_address: leader.map(|(_, address)| address),
        view,
        members: hosts.iter().filter_map(|host| state.member.name(*host)).collect(),
        decided: state.member.position(),
        applied: state.applied,
        units: seen.units,
        unit_bytes: seen.unit_bytes,
        commit_us: percentiles(&seen.commit_ns),
        reads_waited: seen.reads_waited,
        reads_by_key: seen.reads_by_key,
        disconnects: seen.disconnects,
        failovers: seen.failovers,
        last_failover_at_ns: failover.is_some().then_some(seen.death_ns),
        handed_over: seen.handed_over,
        numbered: Numbered { clients: state.kept.once.clients(), digest: format!("{:016x}", state.kept.once.digest()) },
        compared: Compared {
            count: state.compare.compared,
            skipped: state.compare.skipped,
            differed: state.compare.differed,
            last: state.compare.last.as_ref().map(|last| LastCompared {
                number: last.number,
                servers: last.servers,
                differ: last.differ.clone(),
            }),
        },
        rdb_version: state.compare.settings.rdb_version,
        version: Version { speaks: state.version, in_use: state.member.service_version() },
        last_failover_us: failover,
        waits_for: state.waits_for(),
        refuses: state.refuses_and_differs(),
    }
}

/// Name, address and role of each member, by seniority.
pub(super) fn members(state: &State) -> Vec<[String; 3]> {
    let leader = state.member.leader();
    let (_, hosts) = state.member.view().unwrap_or_default();
    let one = |host: u16| {
        let role = if leader == Some(host) { "leader" } else { "follower" };
        Some([state.member.name(host)?, format!("{}:{}", state.member.address(host)?, state.port), role.to_owned()])
    };
    hosts.into_iter().filter_map(one).collect()
}
