// SPDX-License-Identifier: Apache-2.0
//! Gaps between the fresh heartbeats of a peer: how close it has come to a false suspicion.
//!
//! On XDP the receive program counts, by the time at which it ran. On the rungs below, this loop counts, by
//! the time at which it took the heartbeat in. The detector uses the same time there, so a stall of this
//! loop shows in the gaps of all peers.

use fide_shm::gaps::{BUCKETS, Gaps};
use fide_types::{HostId, MAX_HOSTS, PerHost};

use crate::{clock::Now, frozen::FrozenGaps};

/// The gaps between heartbeats of each peer, as counted by this loop.
#[derive(Debug)]
pub(super) struct GapCounts(PerHost<Gaps>);

impl GapCounts {
    pub(super) fn new() -> Self {
        Self(PerHost::new(MAX_HOSTS, |_| Gaps::NONE))
    }

    /// A fresh heartbeat arrived. `is_watched`: its peer is monitored and up; if not, the next heartbeat
    /// ends no gap.
    pub(super) fn arrived(&mut self, host: HostId, incarnation: u32, now_raw_ns: u64, is_watched: bool) {
        let gaps = &mut self.0[host];
        if is_watched {
            gaps.arrived(incarnation, now_raw_ns);
        } else {
            gaps.begin_anew();
        }
    }

    /// A peer's gaps, with the end of the longest one in CLOCK_MONOTONIC ns.
    pub(super) fn read(&self, now: Now, host: HostId) -> Gaps {
        let mut gaps = self.0[host];
        if gaps.longest_ns != 0 {
            gaps.longest_at_ns = now.mono_ns.saturating_sub(now.raw_ns.saturating_sub(gaps.longest_at_ns));
        }
        gaps
    }

    /// The counts for the next agent; no gap spans the takeover. The receive program's counts stay in its
    /// map.
    pub(super) fn freeze(&self, hosts: u16) -> Vec<FrozenGaps> {
        let of = |gaps: &Gaps| FrozenGaps {
            longest_ns: gaps.longest_ns,
            longest_at_ns: gaps.longest_at_ns,
            sum_ns: gaps.sum_ns,
            incarnation: gaps.incarnation,
            counts: (0..).zip(gaps.counts).filter(|(_, count)| *count > 0).collect(),
        };
        self.0.values().iter().take(usize::from(hosts)).map(of).collect()
    }

    pub(super) fn resume(&mut self, frozen: Vec<FrozenGaps>) {
        for (gaps, frozen) in self.0.values_mut().iter_mut().zip(frozen) {
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
    use fide_wire::{Ack, Builder, seal};

    use super::{
        super::{
            EVENTS_PER_TURN, Engine,
            tests::{at, engine, engine_of, now},
        },
        *,
    };

    /// Between two datagrams.
    const APART_NS: u64 = 50_000;

    /// Takes in a datagram of the other host, which has answered this one. Returns the gaps between its
    /// heartbeats afterwards.
    fn datagram(engine: &mut Engine, time_ns: &mut u64, incarnation: u32, seq: u64) -> Gaps {
        let mut bytes = [0; fide_wire::PAYLOAD_MAX];
        let mut builder = Builder::heartbeat(&mut bytes, 3 - engine.facts.me, incarnation, seq).expect("room");
        builder.push_ack(Ack { incarnation: 7, seq_low: 0 }).expect("room");
        let len = builder.finish();
        seal(&mut bytes[..len], 0, &engine.keys.current);
        engine.datagram[..len].copy_from_slice(&bytes[..len]);
        *time_ns += APART_NS;
        engine.datagram_received(at(*time_ns), 0, len);
        engine.detector.tick(*time_ns);
        engine.deliver_events(at(*time_ns), EVENTS_PER_TURN);
        engine.gaps.read(at(*time_ns), 3 - engine.facts.me)
    }

    #[test]
    fn gaps_are_between_fresh_heartbeats_of_one_incarnation() {
        let ((mut engine, _exchange), mut time_ns) = (engine(), now().raw_ns);
        let counts = [(9, 1), (9, 2), (9, 2), (9, 4), (9, 3), (10, 1), (10, 2), (9, 5)]
            .map(|(incarnation, seq)| datagram(&mut engine, &mut time_ns, incarnation, seq).count());
        // The first of each incarnation ends no gap, nor does a replay or the dead incarnation.
        assert_eq!(counts, [0, 1, 1, 2, 3, 3, 4, 4]);
        assert_eq!(datagram(&mut engine, &mut time_ns, 10, 3).longest_ns, 2 * APART_NS, "beyond what was refused");
    }

    #[test]
    fn takeover_keeps_the_counts_and_spans_no_gap() {
        let ((mut old, _exchange), mut time_ns) = (engine(), now().raw_ns);
        (1..5).for_each(|seq| assert!(datagram(&mut old, &mut time_ns, 9, seq).last_ns > 0));
        let before = datagram(&mut old, &mut time_ns, 9, 5);
        assert!(before.count() > 1);
        let frozen = old.freeze(at(time_ns));
        let (mut new, _exchange) = engine_of(1);
        new.detector = frozen.detector().expect("as it was");
        new.resume(at(time_ns), frozen, Vec::new());
        let of = |gaps: Gaps| (gaps.counts, gaps.sum_ns, gaps.longest_ns);
        assert_eq!(of(datagram(&mut new, &mut time_ns, 9, 6)), of(before), "the first one ends no gap");
        assert_eq!(datagram(&mut new, &mut time_ns, 9, 7).count(), before.count() + 1);
    }
}
