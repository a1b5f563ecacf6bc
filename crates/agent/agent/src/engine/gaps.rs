// SPDX-License-Identifier: Apache-2.0
//! Gaps between the fresh heartbeats of a peer: how near its timeout has come to a false suspicion.
//!
//! On XDP the receive program counts, by the time at which it ran. On the rungs below this loop counts, by the time at which
//! it took the heartbeat in, which is what the detector goes by there: a stall of this loop is in the gaps of all peers.

use fide_detector::{Accepted, PeerState};
use fide_shm::gaps::{BUCKETS, Gaps};
use fide_sys::clock::{mono_ns, raw_ns};
use serde::{Deserialize, Serialize};

use super::Engine;

/// The gaps of one peer, as one agent hands them to the next.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct FrozenGaps {
    longest_ns: u64,
    longest_at_ns: u64,
    sum_ns: u64,
    incarnation: u32,
    /// Bucket and count of those that are not empty.
    counts: Vec<(u16, u64)>,
}

impl Engine {
    /// A heartbeat came that the receive program has not seen.
    pub(super) fn count_gap(&mut self, host: u16, accepted: Accepted, now: u64) {
        let (Accepted::Heartbeat, Some(peer)) = (accepted, self.parts.detector.peer(host)) else { return };
        let gaps = &mut self.gaps[usize::from(host) - 1];
        if peer.state == PeerState::Up && self.parts.monitors.contains(host) {
            gaps.arrived(peer.incarnation, now);
        } else {
            gaps.begin_anew();
        }
    }

    /// The gaps of a peer, with the end of the longest one in CLOCK_MONOTONIC ns, whoever counted.
    pub(super) fn read_gaps(&self, host: u16, into: &mut Gaps) {
        if let Some(kernel) = self.parts.kernel.as_ref().filter(|kernel| kernel.xdp) {
            kernel.receive.read_gaps(host, into);
            return;
        }
        *into = self.gaps[usize::from(host) - 1];
        if into.longest_ns != 0 {
            into.longest_at_ns = mono_ns().saturating_sub(raw_ns().saturating_sub(into.longest_at_ns));
        }
    }

    /// For the next agent: counts are kept, and no gap spans the takeover. What the receive program counts stays in its map.
    pub(super) fn freeze_gaps(&self) -> Vec<FrozenGaps> {
        let of = |gaps: &Gaps| FrozenGaps {
            longest_ns: gaps.longest_ns,
            longest_at_ns: gaps.longest_at_ns,
            sum_ns: gaps.sum_ns,
            incarnation: gaps.incarnation,
            counts: (0..).zip(gaps.counts).filter(|(_, count)| *count > 0).collect(),
        };
        self.gaps.iter().take(usize::from(self.parts.members)).map(of).collect()
    }

    pub(super) fn resume_gaps(&mut self, frozen: Vec<FrozenGaps>) {
        for (gaps, frozen) in self.gaps.iter_mut().zip(frozen) {
            let FrozenGaps { longest_ns, longest_at_ns, sum_ns, incarnation, counts } = frozen;
            *gaps = Gaps { longest_ns, longest_at_ns, sum_ns, incarnation, ..Gaps::NONE };
            for (bucket, count) in counts.into_iter().filter(|(bucket, _)| usize::from(*bucket) < BUCKETS) {
                gaps.counts[usize::from(bucket)] = count;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fide_wire::{Ack, Builder, seal};

    use super::{
        super::tests::{engine, engine_of},
        *,
    };

    /// Datagram of the other host, which has answered this one. Gives the gaps between its heartbeats afterwards.
    fn datagram(engine: &mut Engine, incarnation: u32, seq: u64) -> Gaps {
        let mut bytes = [0; fide_wire::PAYLOAD_MAX];
        let mut builder = Builder::heartbeat(&mut bytes, 3 - engine.parts.me, incarnation, seq).expect("room");
        builder.push_ack(Ack { incarnation: 7, seq_low: 0 }).expect("room");
        let len = builder.finish();
        seal(&mut bytes[..len], 0, &engine.parts.keys.current);
        engine.datagram[..len].copy_from_slice(&bytes[..len]);
        engine.datagram_received(0, len);
        engine.parts.detector.tick(raw_ns());
        engine.tell_events(super::super::EVENTS_PER_TURN);
        std::thread::sleep(Duration::from_micros(50));
        let mut gaps = Gaps::NONE;
        engine.read_gaps(3 - engine.parts.me, &mut gaps);
        gaps
    }

    #[test]
    fn gaps_are_between_fresh_heartbeats_of_one_incarnation() {
        let (mut engine, _exchange) = engine();
        let counts = [(9, 1), (9, 2), (9, 2), (9, 4), (9, 3), (10, 1), (10, 2), (9, 5)]
            .map(|(incarnation, seq)| datagram(&mut engine, incarnation, seq).count());
        // The first of each incarnation ends no gap, nor does a replay or the dead incarnation.
        assert_eq!(counts, [0, 1, 1, 2, 3, 3, 4, 4]);
    }

    #[test]
    fn takeover_keeps_the_counts_and_spans_no_gap() {
        let (mut old, _exchange) = engine();
        (1..5).for_each(|seq| assert!(datagram(&mut old, 9, seq).last_ns > 0));
        let before = datagram(&mut old, 9, 5);
        assert!(before.count() > 1);
        let frozen = old.freeze();
        let (mut new, _exchange) = engine_of(1);
        new.parts.detector = frozen.detector().expect("as it was");
        new.resume(frozen, Vec::new());
        let of = |gaps: Gaps| (gaps.counts, gaps.sum_ns, gaps.longest_ns);
        assert_eq!(of(datagram(&mut new, 9, 6)), of(before), "the first one ends no gap");
        assert_eq!(datagram(&mut new, 9, 7).count(), before.count() + 1);
    }
}
