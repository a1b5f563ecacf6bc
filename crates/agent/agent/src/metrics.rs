// SPDX-License-Identifier: Apache-2.0
//! Prometheus text, in base units.

use std::fmt::Write;

use fide_detector::PeerState;

use fide_shm::gaps::{BUCKETS, FIRST_NS, Gaps, LAST_NS, bucket};

use crate::{config::Config, journal::Journal, snapshot::Snapshot};

/// Of the powers of two that bound the buckets of gaps, every so manyth is said; the fewer, the less room they take.
pub const THINNED: [usize; 3] = [1, 2, 4];
/// The least of these bounds, 64 us in powers of two.
const GAP_BOUND_NS: u64 = FIRST_NS << 6;

/// The metrics of this agent in the text exposition format. `thinned`: one of [`THINNED`], or `usize::MAX` for no buckets.
#[must_use]
pub fn text(config: &Config, me: u16, snapshot: &Snapshot, journal: &Journal, thinned: usize) -> String {
    let mut out = String::new();
    let mut family = |name: &str, kind: &str, help: &str, samples: &[(String, f64)]| {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in samples {
            let _ = writeln!(out, "{name}{labels} {value}");
        }
    };
    let seconds = |ns: u64| ns as f64 / 1e9;
    let plain = |value: u64| vec![(String::new(), value as f64)];
    let peers: Vec<_> = (1u16..)
        .zip(&config.members)
        .filter(|(id, _)| *id != me)
        .filter_map(|(id, member)| Some((member.name.as_str(), snapshot.peers[usize::from(id) - 1]?)))
        .collect();
    let each = |value: &dyn Fn(&fide_detector::PeerView) -> f64| -> Vec<(String, f64)> {
        peers.iter().map(|(name, peer)| (format!("{{peer=\"{name}\"}}"), value(peer))).collect()
    };
    let detector = &snapshot.counters;
    family(
        "fide_peer_up",
        "gauge",
        "Whether the peer's host is alive.",
        &each(&|peer| f64::from(u8::from(peer.state == PeerState::Up))),
    );
    family(
        "fide_peer_timeout_seconds",
        "gauge",
        "Silence after which the peer is suspected.",
        &each(&|peer| seconds(peer.timeout_ns)),
    );
    let planes: Vec<(String, f64)> = peers
        .iter()
        .flat_map(|(name, peer)| {
            (0..config.planes.len()).map(move |plane| {
                let all = peer.received[plane] + peer.lost[plane];
                let ratio = if all == 0 { 0.0 } else { peer.lost[plane] as f64 / all as f64 };
                (format!("{{peer=\"{name}\",plane=\"{plane}\"}}"), ratio)
            })
        })
        .collect();
    family("fide_tree_loss_ratio", "gauge", "Heartbeats missing on a plane, of all sent.", &planes);
    family("fide_failures_total", "counter", "Failure verdicts, of processes and hosts.", &plain(journal.failures));
    family("fide_host_silent_total", "counter", "Verdicts of silent hosts.", &plain(journal.silences));
    family(
        "fide_suppressed_verdicts_total",
        "counter",
        "Suspicions that were withheld.",
        &[("{reason=\"observer_stalled\"}".to_owned(), detector.suspicions_withheld as f64)],
    );
    family(
        "fide_self_stall_seconds",
        "counter",
        "Time during which this agent did not run when it should have.",
        &[(String::new(), seconds(detector.stalled_ns))],
    );
    family("fide_self_stalls_total", "counter", "Stalls of this agent.", &plain(detector.stalls));
    family("fide_fenced", "gauge", "Whether this host may not act.", &plain(u64::from(snapshot.fenced)));
    family("fide_heartbeats_sent_total", "counter", "Heartbeats sent.", &plain(detector.heartbeats_sent));
    let kernel = snapshot.kernel.unwrap_or_default();
    let refused = |reason: &str, count: u64| (format!("{{reason=\"{reason}\"}}"), count as f64);
    family(
        "fide_refused_packets_total",
        "counter",
        "Packets that changed nothing.",
        &[
            refused("malformed", detector.refused_malformed + snapshot.engine.malformed + kernel.malformed),
            refused("bad_tag", snapshot.engine.bad_tag + kernel.bad_tag),
            refused("stale", detector.refused_stale_incarnation + detector.refused_dead_incarnation + kernel.stale),
            refused("replayed", detector.refused_replayed + kernel.replayed),
            refused("foreign", detector.refused_not_a_member + detector.refused_wrong_plane + kernel.foreign),
        ],
    );
    family(
        "fide_events_undelivered_total",
        "counter",
        "Events that found a client's ring full.",
        &plain(snapshot.engine.events_undelivered),
    );
    let engine = &snapshot.engine;
    let lanes = |label: &str, counts: &[(&str, u64)]| -> Vec<(String, f64)> {
        counts.iter().map(|(value, count)| (format!("{{{label}=\"{value}\"}}"), *count as f64)).collect()
    };
    family(
        "fide_lane_packets_total",
        "counter",
        "Packets of programs' lanes.",
        &lanes(
            "direction",
            &[
                ("sent", engine.lane_packets_sent),
                ("received", engine.lane_packets_received),
                ("lost", engine.lane_packets_lost),
            ],
        ),
    );
    family(
        "fide_lane_messages_dropped_total",
        "counter",
        "Messages of programs' lanes that were dropped here.",
        &lanes(
            "reason",
            &[
                ("exceeded", engine.lane_messages_exceeded),
                ("no_lane", engine.lane_messages_stray),
                ("no_listener", engine.lane_messages_unheard),
            ],
        ),
    );
    family(
        "fide_lane_chunks_damaged_total",
        "counter",
        "Chunks whose checksum did not fit.",
        &plain(engine.lane_chunks_damaged),
    );
    let gaps: Vec<_> = (1u16..)
        .zip(&config.members)
        .filter(|(id, _)| snapshot.peers[usize::from(*id) - 1].is_some() && *id != me)
        .map(|(id, member)| (member.name.as_str(), &snapshot.gaps[usize::from(id) - 1]))
        .collect();
    gap_histograms(&mut out, &gaps, thinned);
    out
}

/// A gap of exactly a bound, to the nanosecond, is counted above it.
fn gap_histograms(out: &mut String, gaps: &[(&str, &Gaps)], thinned: usize) {
    const NAME: &str = "fide_heartbeat_gap_seconds";
    let help = "Times between two fresh heartbeats of a peer, over whichever plane.";
    let _ = writeln!(out, "# HELP {NAME} {help}\n# TYPE {NAME} histogram");
    for (peer, gaps) in gaps {
        let bounds_ns = std::iter::successors(Some(GAP_BOUND_NS), |bound_ns| Some(bound_ns * 2));
        for bound_ns in bounds_ns.take_while(|bound_ns| *bound_ns <= LAST_NS).step_by(thinned) {
            let below: u64 = gaps.counts[..bucket(bound_ns).min(BUCKETS)].iter().sum();
            let _ = writeln!(out, "{NAME}_bucket{{peer=\"{peer}\",le=\"{}\"}} {below}", bound_ns as f64 / 1e9);
        }
        let (count, sum) = (gaps.count(), gaps.sum_ns as f64 / 1e9);
        let _ = writeln!(out, "{NAME}_bucket{{peer=\"{peer}\",le=\"+Inf\"}} {count}");
        let _ = writeln!(out, "{NAME}_sum{{peer=\"{peer}\"}} {sum}\n{NAME}_count{{peer=\"{peer}\"}} {count}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_of_gaps_counts_up_to_each_power_of_two() {
        let mut gaps = Gaps::NONE;
        for now_ns in [1000, 101_000, 201_000, 5_201_000] {
            gaps.arrived(1, now_ns);
        }
        let of = |thinned| {
            let mut out = String::new();
            gap_histograms(&mut out, &[("h2", &gaps)], thinned);
            out
        };
        let (all, fewest) = (of(1), of(usize::MAX));
        for line in [
            "_bucket{peer=\"h2\",le=\"0.000065536\"} 0",
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
