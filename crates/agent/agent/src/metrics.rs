// SPDX-License-Identifier: Apache-2.0
//! Prometheus text, in base units. Rendered on the control thread, from a snapshot.

use std::fmt;

use fide_detector::{PeerState, PeerView};
use fide_shm::gaps::{BUCKETS, FIRST_NS, Gaps, LAST_NS, bucket};
use fide_types::{HostId, host_index};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, NoLabelSet, prometheus_text},
    metrics::MetricType,
    registry::Registry,
};

use crate::{config::Config, journal::Journal, snapshot::Snapshot};

/// Which of the powers of two that bound the buckets of gaps are listed: every n-th. Fewer take less room.
pub const THINNED: [usize; 3] = [1, 2, 4];
/// The smallest of these bounds: 64 us, as a power of two.
const GAP_BOUND_NS: u64 = FIRST_NS << 6;

type Labels = Vec<(&'static str, String)>;

#[derive(Debug)]
enum Value {
    Count(u64),
    Number(f64),
    /// Buckets: upper bound, and the count in it alone.
    Histogram {
        sum: f64,
        count: u64,
        buckets: Vec<(f64, u64)>,
    },
}

/// Metrics of one name. Counters get `_total` behind it.
#[derive(Debug)]
struct Family {
    name: &'static str,
    kind: MetricType,
    help: &'static str,
    samples: Vec<(Labels, Value)>,
}

#[derive(Debug, Default)]
struct Families(Vec<Family>);

impl Families {
    fn put(&mut self, name: &'static str, kind: MetricType, help: &'static str, samples: Vec<(Labels, Value)>) {
        self.0.push(Family { name, kind, help, samples });
    }

    fn gauge(&mut self, name: &'static str, help: &'static str, samples: Vec<(Labels, Value)>) {
        self.put(name, MetricType::Gauge, help, samples);
    }

    /// Without labels.
    fn counter(&mut self, name: &'static str, help: &'static str, count: u64) {
        self.put(name, MetricType::Counter, help, vec![(Labels::new(), Value::Count(count))]);
    }

    /// With one label, and these values of it.
    fn counters(&mut self, name: &'static str, help: &'static str, label: &'static str, counts: &[(&str, u64)]) {
        let samples = counts.iter().map(|(value, count)| (vec![(label, (*value).to_owned())], Value::Count(*count)));
        self.put(name, MetricType::Counter, help, samples.collect());
    }

    fn text(self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = prometheus_text::encode(&mut out, &registry);
        out
    }
}

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in &self.0 {
            let mut metric = encoder.encode_descriptor(family.name, family.help, None, family.kind)?;
            for (labels, value) in &family.samples {
                let mut sample = metric.encode_family(labels)?;
                match value {
                    Value::Count(count) if matches!(family.kind, MetricType::Counter) => {
                        sample.encode_counter::<NoLabelSet, _, f64>(count, None)?;
                    }
                    Value::Count(count) => sample.encode_gauge(count)?,
                    Value::Number(number) => sample.encode_gauge(number)?,
                    Value::Histogram { sum, count, buckets } => {
                        sample.encode_histogram::<NoLabelSet>(*sum, *count, buckets, None)?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// The metrics of this agent in the text exposition format. `thinned`: one of [`THINNED`], or `usize::MAX`
/// for no buckets.
#[must_use]
pub fn text(config: &Config, me: HostId, snapshot: &Snapshot, journal: &Journal, thinned: usize) -> String {
    let mut out = Families::default();
    let peers: Vec<(&str, PeerView, &Gaps)> = (1u16..)
        .zip(&config.members)
        .filter(|(id, _)| *id != me)
        .filter_map(|(id, member)| {
            let at = host_index(id);
            Some((member.name.as_str(), snapshot.peers[at]?, &snapshot.gaps[at]))
        })
        .collect();
    let label = |name: &str| ("peer", name.to_owned());
    let each = |value: &dyn Fn(&PeerView) -> Value| -> Vec<(Labels, Value)> {
        peers.iter().map(|(name, peer, _)| (vec![label(name)], value(peer))).collect()
    };
    out.gauge(
        "fide_peer_up",
        "Whether the peer's host is alive.",
        each(&|peer| Value::Count(u64::from(peer.state == PeerState::Up))),
    );
    out.gauge(
        "fide_peer_timeout_seconds",
        "Silence after which the peer is suspected.",
        each(&|peer| Value::Number(seconds(peer.timeout_ns))),
    );
    let planes = peers.iter().flat_map(|(name, peer, _)| {
        (0..config.planes.len()).map(move |plane| {
            let all = peer.received[plane] + peer.lost[plane];
            let ratio = if all == 0 { 0.0 } else { peer.lost[plane] as f64 / all as f64 };
            (vec![label(name), ("plane", plane.to_string())], Value::Number(ratio))
        })
    });
    out.gauge("fide_tree_loss_ratio", "Heartbeats missing on a plane, of all sent.", planes.collect());
    verdicts(&mut out, snapshot, journal);
    refused(&mut out, snapshot);
    lanes(&mut out, snapshot);
    let gaps = peers.iter().map(|(name, _, gaps)| (vec![label(name)], histogram(gaps, thinned)));
    out.put(
        "fide_heartbeat_gap_seconds",
        MetricType::Histogram,
        "Times between two fresh heartbeats of a peer, over whichever plane.",
        gaps.collect(),
    );
    out.text()
}

fn verdicts(out: &mut Families, snapshot: &Snapshot, journal: &Journal) {
    let detector = &snapshot.counters;
    out.counter("fide_failures", "Failure verdicts, of processes and hosts.", journal.failures);
    out.counter("fide_host_silent", "Verdicts of silent hosts.", journal.silences);
    out.counters(
        "fide_suppressed_verdicts",
        "Suspicions that were withheld.",
        "reason",
        &[("observer_stalled", detector.suspicions_withheld)],
    );
    // It only grows; but a counter would have to be called `_total`, and its name must stay.
    out.put(
        "fide_self_stall_seconds",
        MetricType::Unknown,
        "Time during which this agent did not run when it should have.",
        vec![(Labels::new(), Value::Number(seconds(detector.stalled_ns)))],
    );
    out.counter("fide_self_stalls", "Stalls of this agent.", detector.stalls);
    let fenced = vec![(Labels::new(), Value::Count(u64::from(snapshot.fenced)))];
    out.gauge("fide_fenced", "Whether this host may not act.", fenced);
    out.counter("fide_heartbeats_sent", "Heartbeats sent.", detector.heartbeats_sent);
}

fn refused(out: &mut Families, snapshot: &Snapshot) {
    let (detector, engine, kernel) = (&snapshot.counters, &snapshot.engine, snapshot.kernel.unwrap_or_default());
    out.counters(
        "fide_refused_packets",
        "Packets that changed nothing.",
        "reason",
        &[
            ("malformed", detector.refused_malformed + engine.malformed + kernel.malformed),
            ("bad_tag", engine.bad_tag + kernel.bad_tag),
            ("stale", detector.refused_stale_incarnation + detector.refused_dead_incarnation + kernel.stale),
            ("replayed", detector.refused_replayed + kernel.replayed),
            ("foreign", detector.refused_not_a_member + detector.refused_wrong_plane + kernel.foreign),
        ],
    );
    out.counter("fide_events_undelivered", "Events that found a client's ring full.", engine.events_undelivered);
}

fn lanes(out: &mut Families, snapshot: &Snapshot) {
    let engine = &snapshot.engine;
    out.counters(
        "fide_lane_packets",
        "Packets of programs' lanes.",
        "direction",
        &[
            ("sent", engine.lane_packets_sent),
            ("received", engine.lane_packets_received),
            ("lost", engine.lane_packets_lost),
        ],
    );
    out.counters(
        "fide_lane_messages_dropped",
        "Messages of programs' lanes that were dropped here.",
        "reason",
        &[
            ("exceeded", engine.lane_messages_exceeded),
            ("no_lane", engine.lane_messages_stray),
            ("no_listener", engine.lane_messages_unheard),
        ],
    );
    out.counter("fide_lane_chunks_damaged", "Chunks whose checksum did not fit.", engine.lane_chunks_damaged);
}

/// A gap of exactly a bound, to the nanosecond, counts above it.
fn histogram(gaps: &Gaps, thinned: usize) -> Value {
    let bounds_ns = std::iter::successors(Some(GAP_BOUND_NS), |bound_ns| Some(bound_ns * 2));
    let mut before = 0;
    let buckets = bounds_ns.take_while(|bound_ns| *bound_ns <= LAST_NS).step_by(thinned).map(|bound_ns| {
        let below: u64 = gaps.counts[..bucket(bound_ns).min(BUCKETS)].iter().sum();
        let within = below - before;
        before = below;
        (seconds(bound_ns), within)
    });
    let buckets = buckets.collect();
    Value::Histogram { sum: seconds(gaps.sum_ns), count: gaps.count(), buckets }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every family with a value other than its default.
    fn whole(thinned: usize) -> String {
        let config = crate::config::tests::load(crate::config::tests::GOOD).expect("good");
        let mut snapshot = Snapshot::empty();
        let peer = |state, received, lost| fide_detector::PeerView {
            state,
            incarnation: 7,
            last_seq: 1,
            last_rx_ns: [0; 2],
            timeout_ns: 10_250_000,
            path_lost: [false; 2],
            received,
            lost,
            suspected: false,
            view: fide_wire::ViewId::NONE,
        };
        snapshot.peers[1] = Some(peer(PeerState::Up, [99, 1000], [1, 0]));
        snapshot.peers[2] = Some(peer(PeerState::Dead, [0, 0], [0, 0]));
        snapshot.counters.stalled_ns = 1_500_000;
        snapshot.counters.stalls = 3;
        snapshot.counters.heartbeats_sent = 123_456_789;
        snapshot.counters.refused_replayed = 4;
        snapshot.engine.bad_tag = 5;
        snapshot.engine.lane_packets_sent = 6;
        snapshot.engine.lane_messages_stray = 7;
        snapshot.engine.lane_chunks_damaged = 8;
        for now_ns in [1000, 101_000, 201_000, 5_201_000] {
            snapshot.gaps[1].arrived(1, now_ns);
        }
        let mut journal = Journal::new("h1");
        (journal.failures, journal.silences) = (2, 1);
        text(&config, 1, &snapshot, &journal, thinned)
    }

    #[test]
    fn text_is_as_expected() {
        assert_eq!(whole(1), include_str!("metrics/example.txt"));
    }

    #[test]
    fn histogram_of_gaps_counts_up_to_each_power_of_two() {
        let mut gaps = Gaps::NONE;
        for now_ns in [1000, 101_000, 201_000, 5_201_000] {
            gaps.arrived(1, now_ns);
        }
        let of = |thinned| {
            let mut out = Families::default();
            let samples = vec![(vec![("peer", "h2".to_owned())], histogram(&gaps, thinned))];
            out.put("fide_heartbeat_gap_seconds", MetricType::Histogram, "Gaps.", samples);
            out.text()
        };
        let (all, fewest) = (of(1), of(usize::MAX));
        for line in [
            "_bucket{peer=\"h2\",le=\"6.5536e-05\"} 0",
            "_bucket{peer=\"h2\",le=\"0.000131072\"} 2",
            "_bucket{peer=\"h2\",le=\"0.004194304\"} 2",
            "_bucket{peer=\"h2\",le=\"0.008388608\"} 3",
            "_bucket{peer=\"h2\",le=\"+Inf\"} 3",
            "_sum{peer=\"h2\"} 0.0052\n",
            "_count{peer=\"h2\"} 3\n",
        ] {
            assert!(all.contains(&format!("fide_heartbeat_gap_seconds{line}")), "{line} is not in {all}");
        }
        assert_eq!(
            (all.lines().count(), of(4).lines().count(), fewest.lines().count()),
            (2 + 15 + 3, 2 + 4 + 3, 2 + 1 + 3)
        );
    }
}
