// SPDX-License-Identifier: Apache-2.0
//! The answer to `fide status`.

use fide_detector::{PeerState, ProcessState};
use fide_shm::gaps::{Gaps, least_ns};
use fide_wire::MAX_PLANES;
use serde_json::{Value, json};
use std::time::Instant;

use crate::{
    clock::{self, Stand},
    config::{
        Config, Mode,
        shape::{Differs, says},
    },
    excluded::Excluded,
    rungs::Rungs,
    snapshot::Snapshot,
};

/// Layout of the answer; grows only by new keys.
const SCHEMA: u32 = 1;

/// A local process under watch.
pub struct Local<'a> {
    pub slot: u8,
    pub name: &'a str,
    pub pid: u32,
    pub uid: u32,
    pub incarnation: u32,
    pub session: Option<&'a str>,
}

/// A connected client.
pub struct Client<'a> {
    pub program: &'a str,
    pub pid: u32,
    pub uid: u32,
    pub watches: u32,
}

/// Everything that is told.
pub struct Told<'a> {
    pub config: &'a Config,
    pub me: u16,
    pub rungs: &'a Rungs,
    pub snapshot: &'a Snapshot,
    pub local: Vec<Local<'a>>,
    pub clients: Vec<Client<'a>>,
    pub records_lost: u64,
    pub timeout_ns: u64,
    pub excluded: Option<&'a Excluded>,
    /// Which processes of other hosts are left out, so that the answer is no longer than a message may be.
    pub left_out: LeftOut,
    /// Hosts that are configured otherwise, and in what.
    pub differs: Vec<(&'a str, &'a [Differs])>,
}

/// Processes of other hosts that an answer leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftOut {
    None,
    Ended,
    All,
    /// Also the gaps of peers.
    Gaps,
}

/// What is said of a peer's gaps in short. The times are at most 1/16 too long, but for the longest one.
fn gaps(gaps: &Gaps, mono_ns: u64) -> Value {
    let us = |share| gaps.quantile_ns(share) / 1000;
    json!({
        "count": gaps.count(),
        "p50_us": us(0.5),
        "p99_us": us(0.99),
        "p999_us": us(0.999),
        "p9999_us": us(0.9999),
        "longest_us": gaps.longest_ns / 1000,
        "longest_ago_us": (gaps.longest_ns != 0).then(|| mono_ns.saturating_sub(gaps.longest_at_ns) / 1000),
    })
}

/// The gaps between the heartbeats of one peer, all buckets of them; reply to `gaps`.
#[must_use]
pub fn all_gaps(config: &Config, peer: u16, snapshot: &Snapshot) -> Value {
    let of = &snapshot.gaps[usize::from(peer) - 1];
    json!({
        "schema": SCHEMA,
        "host": config.member(peer).name.as_str(),
        "count": of.count(),
        "sum_ns": of.sum_ns,
        "longest_ns": of.longest_ns,
        "longest_at_ns": of.longest_at_ns,
        "now_ns": snapshot.mono_ns,
        "buckets": of.counts.iter().enumerate().filter(|(_, count)| **count > 0).map(|(bucket, count)| {
            json!([least_ns(bucket), count])
        }).collect::<Vec<_>>(),
    })
}

impl Told<'_> {
    /// As JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let Self { config, me, snapshot, .. } = self;
        let lease_left_us = match snapshot.lease_until_ns {
            u64::MAX => Value::Null,
            until => json!(until.saturating_sub(snapshot.now_ns) / 1000),
        };
        json!({
            "schema": SCHEMA,
            "cluster": config.cluster,
            "host": config.member(*me).name.as_str(),
            "host_id": me,
            "incarnation": snapshot.incarnation,
            "version": env!("CARGO_PKG_VERSION"),
            "up_ns": snapshot.now_ns.saturating_sub(snapshot.started_ns),
            "trust": config.trust.as_str(),
            "policy": config.policy.as_str(),
            "mode": match config.mode { Mode::Sleep => "sleep", Mode::Busy => "busy" },
            "heartbeat_us": config.heartbeat_ns / 1000,
            "timeout_us": self.timeout_ns / 1000,
            "fenced": snapshot.fenced,
            "clock": self.clock(),
            "lease_left_us": lease_left_us,
            "excluded": self.excluded.map(|excluded| json!({
                "why": excluded.why,
                "attempts": excluded.attempts,
                "next_attempt_us": u64::try_from(excluded.next.saturating_duration_since(Instant::now()).as_micros()).unwrap_or(u64::MAX),
            })),
            "view": json!({
                "generation": snapshot.view.generation,
                "number": snapshot.view.number,
                "members": snapshot.view_members.iter().map(|id| config.member(id).name.as_str()).collect::<Vec<_>>(),
            }),
            "own_lateness_max_us": snapshot.own_lateness_max_ns / 1000,
            "rungs": self.rungs,
            "differs": self.differs.iter().map(|(host, items)| json!({
                "host": host, "items": items, "says": says(items),
            })).collect::<Vec<_>>(),
            "peers": self.peers(),
            "processes": self.local.iter().map(|local| json!({
                "name": local.name, "slot": local.slot, "pid": local.pid, "uid": local.uid,
                "incarnation": local.incarnation, "program": local.session,
            })).collect::<Vec<_>>(),
            "clients": self.clients.iter().map(|client| json!({
                "program": client.program, "pid": client.pid, "uid": client.uid, "watches": client.watches,
            })).collect::<Vec<_>>(),
            "lanes": (0u8..).zip(&snapshot.lanes).filter_map(|(handle, lane)| Some((handle, (*lane)?))).map(|(handle, lane)| json!({
                "name": lane.name.as_str(), "handle": handle, "trees": lane.trees, "clients": lane.clients,
                "period_ns": lane.terms.period_ns, "packet_max_bytes": lane.terms.packet_max_bytes,
                "packets": lane.sent.packets, "messages": lane.sent.messages, "exceeded": lane.sent.exceeded,
            })).collect::<Vec<_>>(),
            "counters": self.counters(),
        })
    }

    /// What leases are counted on, and what that clock has shown.
    fn clock(&self) -> Value {
        let Stand { source, witness, .. } = Stand::read();
        let doubts = &self.snapshot.doubts;
        json!({
            "counts_on": "monotonic_raw", "source": source, "drift_ppm": self.config.drift_ppm,
            "counter": self.snapshot.counter, "counter_why": witness,
            "told_of_moves": clock::is_told_of_moves(),
            "suspended": doubts.suspended, "suspended_us": doubts.suspended_ns / 1000,
            "stopped": doubts.stopped, "stopped_us": doubts.stopped_ns / 1000, "moved": doubts.moved,
        })
    }

    fn peers(&self) -> Vec<Value> {
        let Self { config, me, snapshot, .. } = self;
        let planes = config.planes.len().min(MAX_PLANES);
        (1u16..)
            .zip(&config.members)
            .filter(|(id, _)| id != me)
            .map(|(id, member)| {
                let name = member.name.as_str();
                let Some(peer) = &snapshot.peers[usize::from(id) - 1] else {
                    return json!({ "host": name, "id": id, "state": "unknown" });
                };
                let age = |rx_ns: u64| match rx_ns {
                    0 => Value::Null,
                    rx_ns => json!(snapshot.now_ns.saturating_sub(rx_ns) / 1000),
                };
                json!({
                    "host": name,
                    "id": id,
                    "role": member.role.as_str(),
                    "monitored": config.member(*me).monitors.contains(&id),
                    "state": Snapshot::state_name(peer.state),
                    "incarnation": peer.incarnation,
                    "suspected": peer.suspected,
                    "timeout_us": peer.timeout_ns / 1000,
                    "timeout_parts": snapshot.timeouts[usize::from(id) - 1],
                    "jitter_us": snapshot.jitter_ns[usize::from(id) - 1] / 1000,
                    "gaps": (self.left_out != LeftOut::Gaps).then(|| gaps(&snapshot.gaps[usize::from(id) - 1], snapshot.mono_ns)),
                    "network": json!({
                        "latency_min_ns": snapshot.networks[usize::from(id) - 1].latency_min_ns,
                        "jitter_max_ns": snapshot.networks[usize::from(id) - 1].jitter_max_ns,
                    }),
                    "last_seq": peer.last_seq,
                    "planes": (0..planes).map(|plane| json!({
                        "silent_us": age(peer.last_rx_ns[plane]),
                        "received": peer.received[plane],
                        "lost": peer.lost[plane],
                        "path_lost": peer.path_lost[plane],
                    })).collect::<Vec<_>>(),
                    "processes_left_out": self.left_out != LeftOut::None,
                    "processes": snapshot.processes_of(id).filter(|(_, process)| match self.left_out {
                        LeftOut::None => true,
                        LeftOut::Ended => !process.state.is_final(),
                        LeftOut::All | LeftOut::Gaps => false,
                    }).map(|(slot, process)| json!({
                        "name": process.name.as_str(), "slot": slot, "incarnation": process.incarnation,
                        "state": state_name(process.state),
                        "alive": !process.state.is_final() && peer.state == PeerState::Up,
                    })).collect::<Vec<_>>(),
                })
            })
            .collect()
    }

    fn counters(&self) -> Value {
        let (detector, engine) = (&self.snapshot.counters, &self.snapshot.engine);
        let mut value = json!({
            "heartbeats_sent": detector.heartbeats_sent,
            "heartbeats_urgent": detector.heartbeats_urgent,
            "heartbeats_skipped": detector.heartbeats_skipped,
            "heartbeats_accepted": detector.heartbeats_accepted,
            "heartbeats_unanswered": detector.heartbeats_unanswered,
            "notices_sent": detector.notices_sent,
            "notices_accepted": detector.notices_accepted,
            "verdicts": detector.verdicts,
            "stalls": detector.stalls,
            "stalled_us": detector.stalled_ns / 1000,
            "suspicions_withheld": detector.suspicions_withheld,
            "refused_malformed": detector.refused_malformed + engine.malformed,
            "refused_bad_tag": engine.bad_tag,
            "refused_stale": detector.refused_stale_incarnation + detector.refused_dead_incarnation,
            "refused_replayed": detector.refused_replayed,
            "refused_foreign": detector.refused_not_a_member + detector.refused_wrong_plane,
            "piggybacks_sent": detector.piggybacks_sent,
            "piggybacks_delivered": detector.piggybacks_delivered,
            "piggybacks_lost": detector.piggybacks_lost,
            "piggybacks_declined": detector.piggybacks_declined + engine.piggybacks_declined,
            "events_told": engine.events_delivered,
            "events_undelivered": engine.events_undelivered,
            "events_lost": detector.events_lost,
            "journal_lost": self.records_lost,
            "sends_failed": engine.sends_failed,
            "notices_held": engine.notices_held,
            "bells_muted": engine.bells_muted,
            "lane_packets_sent": engine.lane_packets_sent,
            "lane_packets_received": engine.lane_packets_received,
            "lane_packets_lost": engine.lane_packets_lost,
            "lane_chunks_damaged": engine.lane_chunks_damaged,
            "lane_messages_exceeded": engine.lane_messages_exceeded,
            "lane_messages_stray": engine.lane_messages_stray,
            "lane_messages_unheard": engine.lane_messages_unheard,
            "session_end_skipped": engine.session_end_skipped,
            "outboxes_broken": engine.outbox_broken,
            "turns": engine.turns,
        });
        if let Some(kernel) = &self.snapshot.kernel {
            // What the receive program refused never reached the detector.
            for (key, more) in [
                ("refused_malformed", kernel.malformed),
                ("refused_bad_tag", kernel.bad_tag),
                ("refused_stale", kernel.stale),
                ("refused_replayed", kernel.replayed),
                ("refused_foreign", kernel.foreign),
            ] {
                value[key] = json!(value[key].as_u64().unwrap_or(0) + more);
            }
            value["kernel_accepted"] = json!(kernel.accepted);
            value["kernel_told_directly"] = json!(kernel.told_directly);
            value["kernel_exits_seen"] = json!(kernel.exits_seen);
            value["kernel_timers_fired"] = json!(kernel.timer_fired);
            value["wake_ring_full"] = json!(kernel.wake_ring_full);
        }
        value
    }
}

fn state_name(state: ProcessState) -> &'static str {
    match state {
        ProcessState::Alive => "alive",
        ProcessState::Exited { .. } => "exited",
        ProcessState::Killed { .. } => "killed",
        ProcessState::Left => "left",
        ProcessState::Stalled => "stalled",
        ProcessState::HostSilent => "host_silent",
    }
}
