// SPDX-License-Identifier: Apache-2.0
//! The answer to `fide status`.

use fide_agent_api::status::{
    AllGaps, ClientStatus, ClockStatus, ConfiguredOtherwise, Difference, ExcludedStatus, GapsInShort, KnownPeer,
    LaneStatus, LocalProcess, PeerStatus, PlaneStatus, PlannedNetwork, ProcessStatus, Rungs, SCHEMA, Status,
    ViewStatus,
};
use fide_bpf::intf::Stats;
use fide_detector::{PeerState, ProcessState};
use fide_shm::gaps::{Gaps, least_ns};
use fide_types::{HostId, host_index};
use fide_wire::MAX_PLANES;
use std::{collections::BTreeMap, time::Instant};

use crate::{
    clock::{self, Stand},
    config::{Config, Mode, shape::says},
    excluded::Excluded,
    snapshot::Snapshot,
};

/// Everything that goes into a status.
pub struct Report<'a> {
    pub config: &'a Config,
    pub me: HostId,
    pub rungs: &'a Rungs,
    pub snapshot: &'a Snapshot,
    pub local: Vec<LocalProcess>,
    pub clients: Vec<ClientStatus>,
    pub records_lost: u64,
    pub timeout_ns: u64,
    pub excluded: Option<&'a Excluded>,
    /// Which processes of other hosts are left out, so that the answer fits into a message.
    pub left_out: LeftOut,
    /// Hosts that are configured differently, and in what.
    pub differs: Vec<(&'a str, &'a [Difference])>,
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

/// A summary of the gaps between a peer's heartbeats.
fn gaps(gaps: &Gaps, mono_ns: u64) -> GapsInShort {
    let us = |share| gaps.quantile_ns(share) / 1000;
    GapsInShort {
        count: gaps.count(),
        p50_us: us(0.5),
        p99_us: us(0.99),
        p999_us: us(0.999),
        p9999_us: us(0.9999),
        longest_us: gaps.longest_ns / 1000,
        longest_ago_us: (gaps.longest_ns != 0).then(|| mono_ns.saturating_sub(gaps.longest_at_ns) / 1000),
    }
}

/// Reply to `gaps`.
#[must_use]
pub fn all_gaps(config: &Config, peer: HostId, snapshot: &Snapshot) -> AllGaps {
    let of = &snapshot.gaps[host_index(peer)];
    let counted = of.counts.iter().enumerate().filter(|(_, count)| **count > 0);
    AllGaps {
        schema: SCHEMA,
        host: config.member(peer).name.as_str().to_owned(),
        count: of.count(),
        sum_ns: of.sum_ns,
        longest_ns: of.longest_ns,
        longest_at_ns: of.longest_at_ns,
        now_ns: snapshot.mono_ns,
        buckets: counted.map(|(bucket, count)| (least_ns(bucket), *count)).collect(),
    }
}

impl Report<'_> {
    /// The answer.
    #[must_use]
    pub fn status(&self) -> Status {
        let Self { config, me, snapshot, .. } = self;
        let name = |id| config.member(id).name.as_str().to_owned();
        Status {
            schema: SCHEMA,
            cluster: config.cluster.clone(),
            host: name(*me),
            host_id: *me,
            incarnation: snapshot.incarnation,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            up_ns: snapshot.now_ns.saturating_sub(snapshot.started_ns),
            trust: config.trust,
            policy: config.policy,
            mode: match config.mode {
                Mode::Sleep => "sleep",
                Mode::Busy => "busy",
            }
            .to_owned(),
            heartbeat_us: config.heartbeat_ns / 1000,
            timeout_us: self.timeout_ns / 1000,
            fenced: snapshot.fenced,
            clock: Some(self.clock()),
            lease_left_us: match snapshot.lease_until_ns {
                u64::MAX => None,
                until_ns => Some(until_ns.saturating_sub(snapshot.now_ns) / 1000),
            },
            excluded: self.excluded.map(|excluded| ExcludedStatus {
                why: excluded.why.clone(),
                attempts: excluded.attempts,
                next_attempt_us: u64::try_from(excluded.next.saturating_duration_since(Instant::now()).as_micros())
                    .unwrap_or(u64::MAX),
            }),
            view: ViewStatus {
                generation: snapshot.view.generation,
                number: snapshot.view.number,
                members: snapshot.view_members.iter().map(name).collect(),
            },
            own_lateness_max_us: snapshot.own_lateness_max_ns / 1000,
            rungs: self.rungs.clone(),
            differs: self
                .differs
                .iter()
                .map(|(host, items)| ConfiguredOtherwise {
                    host: (*host).to_owned(),
                    items: items.to_vec(),
                    says: says(items),
                })
                .collect(),
            peers: (1..).zip(&config.members).map(|(id, _)| id).filter(|id| id != me).map(|id| self.peer(id)).collect(),
            processes: self.local.clone(),
            clients: self.clients.clone(),
            lanes: self.lanes(),
            counters: self.counters(),
        }
    }

    fn lanes(&self) -> Vec<LaneStatus> {
        let open = (0u8..).zip(&self.snapshot.lanes).filter_map(|(handle, lane)| Some((handle, (*lane)?)));
        open.map(|(handle, lane)| LaneStatus {
            name: lane.name.as_str().to_owned(),
            handle,
            trees: lane.trees,
            clients: lane.clients,
            period_ns: lane.terms.period_ns,
            packet_max_bytes: lane.terms.packet_max_bytes,
            packets: lane.sent.packets,
            messages: lane.sent.messages,
            exceeded: lane.sent.exceeded,
        })
        .collect()
    }

    /// Which clock leases are counted on, and which doubts it has raised.
    fn clock(&self) -> ClockStatus {
        let Stand { source, witness, .. } = Stand::read();
        let doubts = &self.snapshot.doubts;
        ClockStatus {
            counts_on: "monotonic_raw".to_owned(),
            source,
            drift_ppm: self.config.drift_ppm,
            counter: self.snapshot.counter.to_owned(),
            counter_why: witness.to_owned(),
            told_of_moves: clock::hypervisor_reports_moves(),
            suspended: doubts.suspended,
            suspended_us: doubts.suspended_ns / 1000,
            stopped: doubts.stopped,
            stopped_us: doubts.stopped_ns / 1000,
            moved: doubts.moved,
        }
    }

    fn peer(&self, id: HostId) -> PeerStatus {
        let Self { config, me, snapshot, .. } = self;
        let (member, index) = (config.member(id), host_index(id));
        let host = member.name.as_str().to_owned();
        let Some(peer) = &snapshot.peers[index] else {
            return PeerStatus { host, id, state: "unknown".to_owned(), known: None };
        };
        let age_us = |rx_ns: u64| (rx_ns != 0).then(|| snapshot.now_ns.saturating_sub(rx_ns) / 1000);
        let plane = |plane: usize| PlaneStatus {
            silent_us: age_us(peer.last_rx_ns[plane]),
            received: peer.received[plane],
            lost: peer.lost[plane],
            path_lost: peer.path_lost[plane],
        };
        let shown = |state: ProcessState| match self.left_out {
            LeftOut::None => true,
            LeftOut::Ended => !state.is_final(),
            LeftOut::All | LeftOut::Gaps => false,
        };
        let processes = snapshot.processes_of(id).filter(|(_, process)| shown(process.state));
        let known = KnownPeer {
            role: member.role,
            monitored: config.member(*me).monitors.contains(&id),
            incarnation: peer.incarnation,
            suspected: peer.suspected,
            timeout_us: peer.timeout_ns / 1000,
            timeout_parts: snapshot.timeouts[index],
            jitter_us: snapshot.jitter_ns[index] / 1000,
            gaps: (self.left_out != LeftOut::Gaps).then(|| gaps(&snapshot.gaps[index], snapshot.mono_ns)),
            network: PlannedNetwork {
                latency_min_ns: snapshot.networks[index].latency_min_ns,
                jitter_max_ns: snapshot.networks[index].jitter_max_ns,
            },
            last_seq: peer.last_seq,
            planes: (0..config.planes.len().min(MAX_PLANES)).map(plane).collect(),
            processes_left_out: self.left_out != LeftOut::None,
            processes: processes
                .map(|(slot, process)| ProcessStatus {
                    name: process.name.as_str().to_owned(),
                    slot,
                    incarnation: process.incarnation,
                    state: state_name(process.state).to_owned(),
                    alive: !process.state.is_final() && peer.state == PeerState::Up,
                })
                .collect(),
        };
        PeerStatus { host, id, state: Snapshot::state_name(peer.state).to_owned(), known: Some(known) }
    }

    fn counters(&self) -> BTreeMap<String, u64> {
        let (detector, engine) = (&self.snapshot.counters, &self.snapshot.engine);
        // Packets that the receive program refused never reached the detector.
        let kernel = self.snapshot.kernel.as_ref();
        let by_kernel = |of: fn(&Stats) -> u64| kernel.map_or(0, of);
        let mut all = vec![
            ("heartbeats_sent", detector.heartbeats_sent),
            ("heartbeats_urgent", detector.heartbeats_urgent),
            ("heartbeats_skipped", detector.heartbeats_skipped),
            ("heartbeats_accepted", detector.heartbeats_accepted),
            ("heartbeats_unanswered", detector.heartbeats_unanswered),
            ("notices_sent", detector.notices_sent),
            ("notices_accepted", detector.notices_accepted),
            ("verdicts", detector.verdicts),
            ("stalls", detector.stalls),
            ("stalled_us", detector.stalled_ns / 1000),
            ("suspicions_withheld", detector.suspicions_withheld),
            ("refused_malformed", detector.refused_malformed + engine.malformed + by_kernel(|kernel| kernel.malformed)),
            ("refused_bad_tag", engine.bad_tag + by_kernel(|kernel| kernel.bad_tag)),
            (
                "refused_stale",
                detector.refused_stale_incarnation
                    + detector.refused_dead_incarnation
                    + by_kernel(|kernel| kernel.stale),
            ),
            ("refused_replayed", detector.refused_replayed + by_kernel(|kernel| kernel.replayed)),
            (
                "refused_foreign",
                detector.refused_not_a_member + detector.refused_wrong_plane + by_kernel(|kernel| kernel.foreign),
            ),
            ("piggybacks_sent", detector.piggybacks_sent),
            ("piggybacks_delivered", detector.piggybacks_delivered),
            ("piggybacks_lost", detector.piggybacks_lost),
            ("piggybacks_declined", detector.piggybacks_declined + engine.piggybacks_declined),
            ("events_told", engine.events_delivered),
            ("events_undelivered", engine.events_undelivered),
            ("events_lost", detector.events_lost),
            ("journal_lost", self.records_lost),
            ("sends_failed", engine.sends_failed),
            ("notices_held", engine.notices_held),
            ("bells_muted", engine.bells_muted),
            ("lane_packets_sent", engine.lane_packets_sent),
            ("lane_packets_received", engine.lane_packets_received),
            ("lane_packets_lost", engine.lane_packets_lost),
            ("lane_chunks_damaged", engine.lane_chunks_damaged),
            ("lane_messages_exceeded", engine.lane_messages_exceeded),
            ("lane_messages_stray", engine.lane_messages_stray),
            ("lane_messages_unheard", engine.lane_messages_unheard),
            ("session_end_skipped", engine.session_end_skipped),
            ("outboxes_broken", engine.outbox_broken),
            ("turns", engine.turns),
        ];
        if let Some(kernel) = kernel {
            all.extend([
                ("kernel_accepted", kernel.accepted),
                ("kernel_told_directly", kernel.notified_directly),
                ("kernel_exits_seen", kernel.exits_seen),
                ("kernel_timers_fired", kernel.timer_fired),
                ("wake_ring_full", kernel.wake_ring_full),
            ]);
        }
        all.into_iter().map(|(name, count)| (name.to_owned(), count)).collect()
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
