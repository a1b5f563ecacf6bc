// SPDX-License-Identifier: Apache-2.0
//! BBR for datagrams, as X-PACE §IV-A2 has it: a model of the path's rate and shortest round trip, and a cycle of
//! gains that probes for more (draft-cardwell-iccrg-bbr-congestion-control-00).

use super::{Congestion, Feedback};
use crate::windowed::{Largest, Windowed};

/// Doubles the rate each round: 2/ln 2.
const HIGH_GAIN: f64 = 2.885;
/// Each for a round trip; three quarters of a round trip drain what the first one filled.
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
/// Rounds in which the largest rate counts.
const RATE_ROUNDS: u64 = 10;
/// The path is full once the rate grew by less than a quarter for so many rounds.
const FULL_ROUNDS: u32 = 3;
/// How long the shortest round trip counts, and for how long almost nothing is under way to measure it again.
const SHORTEST_WINDOW_NS: u64 = 10_000_000_000;
const PROBE_NS: u64 = 200_000_000;
/// Packets under way at least.
const PACKETS_MIN: u64 = 4;
/// Before anything is known.
const INITIAL_PACKETS: u64 = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Startup,
    Drain,
    Cruise,
    ProbeShortest,
}

/// BBR, first version.
#[derive(Debug)]
pub struct XPace {
    phase: Phase,
    packet_bytes: u64,
    /// By rounds, not by time.
    rate: Windowed<Largest>,
    rounds: u64,
    round_until: u64,
    shortest_us: u64,
    shortest_ns: u64,
    /// Largest rate of startup so far, and rounds since it grew.
    full_rate: u64,
    full_rounds: u32,
    is_full: bool,
    cycle: usize,
    cycle_ns: u64,
    probe_until_ns: Option<u64>,
    pacing_gain: f64,
    window_gain: f64,
    initial_rate: u64,
}

impl XPace {
    /// `packet_bytes`: of the largest packet. `round_trip_us`: as the handshake took it.
    #[must_use]
    pub fn new(packet_bytes: u64, round_trip_us: u64) -> Self {
        Self {
            phase: Phase::Startup,
            packet_bytes,
            rate: Windowed::new(RATE_ROUNDS),
            rounds: 0,
            round_until: 0,
            shortest_us: u64::MAX,
            shortest_ns: 0,
            full_rate: 0,
            full_rounds: 0,
            is_full: false,
            cycle: 2,
            cycle_ns: 0,
            probe_until_ns: None,
            pacing_gain: HIGH_GAIN,
            window_gain: HIGH_GAIN,
            initial_rate: INITIAL_PACKETS * packet_bytes * 1_000_000 / round_trip_us.max(1000),
        }
    }

    fn rate(&self) -> Option<u64> {
        self.rate.get().map(|largest| largest.0).filter(|rate| *rate > 0)
    }

    fn product_bytes(&self, gain: f64) -> u64 {
        match self.rate() {
            Some(rate) if self.shortest_us != u64::MAX => {
                scaled(rate, gain).saturating_mul(self.shortest_us) / 1_000_000
            }
            _ => INITIAL_PACKETS * self.packet_bytes,
        }
    }

    fn check_full(&mut self, is_round: bool, is_app_limited: bool) {
        if self.is_full || !is_round || is_app_limited {
            return;
        }
        let rate = self.rate().unwrap_or(0);
        if rate >= self.full_rate + self.full_rate / 4 {
            (self.full_rate, self.full_rounds) = (rate, 0);
            return;
        }
        self.full_rounds += 1;
        self.is_full = self.full_rounds >= FULL_ROUNDS;
    }

    fn cruise(&mut self, now_ns: u64) {
        self.phase = Phase::Cruise;
        // Any but the one that drains.
        (self.cycle, self.cycle_ns) = (2, now_ns);
        (self.pacing_gain, self.window_gain) = (CYCLE[self.cycle], 2.0);
    }

    fn next_phase(&mut self, now_ns: u64, feedback: &Feedback) {
        match self.phase {
            Phase::Startup if self.is_full => {
                self.phase = Phase::Drain;
                (self.pacing_gain, self.window_gain) = (1.0 / HIGH_GAIN, HIGH_GAIN);
            }
            Phase::Drain if feedback.in_flight_bytes <= self.product_bytes(1.0) => self.cruise(now_ns),
            Phase::Cruise => {
                let has_passed = now_ns.saturating_sub(self.cycle_ns) > self.shortest_us.saturating_mul(1000);
                let gain = CYCLE[self.cycle];
                let is_over = if gain > 1.0 {
                    has_passed && (feedback.lost_bytes > 0 || feedback.in_flight_bytes >= self.product_bytes(gain))
                } else if gain < 1.0 {
                    has_passed || feedback.in_flight_bytes <= self.product_bytes(1.0)
                } else {
                    has_passed
                };
                if is_over {
                    (self.cycle, self.cycle_ns) = ((self.cycle + 1) % CYCLE.len(), now_ns);
                    self.pacing_gain = CYCLE[self.cycle];
                }
            }
            _ => {}
        }
    }

    fn probe_shortest(&mut self, now_ns: u64, is_old: bool, in_flight_bytes: u64) {
        if is_old && self.phase != Phase::ProbeShortest {
            self.phase = Phase::ProbeShortest;
            (self.pacing_gain, self.window_gain) = (1.0, 1.0);
            self.probe_until_ns = None;
        }
        if self.phase != Phase::ProbeShortest {
            return;
        }
        match self.probe_until_ns {
            None if in_flight_bytes <= PACKETS_MIN * self.packet_bytes => self.probe_until_ns = Some(now_ns + PROBE_NS),
            Some(until_ns) if now_ns >= until_ns => {
                self.shortest_ns = now_ns;
                if self.is_full {
                    self.cruise(now_ns);
                } else {
                    self.phase = Phase::Startup;
                    (self.pacing_gain, self.window_gain) = (HIGH_GAIN, HIGH_GAIN);
                }
            }
            _ => {}
        }
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a rate")]
fn scaled(rate: u64, gain: f64) -> u64 {
    (rate as f64 * gain) as u64
}

impl Congestion for XPace {
    fn name(&self) -> &'static str {
        "xpace"
    }

    fn feedback(&mut self, now_ns: u64, feedback: &Feedback) {
        let is_round = feedback.came_bytes > 0 && feedback.delivered_before >= self.round_until;
        if is_round {
            self.round_until = feedback.delivered;
            self.rounds += 1;
        }
        let mut is_app_limited = false;
        if let Some(sample) = feedback.rate {
            is_app_limited = sample.is_app_limited;
            let rate = sample.bytes_per_s();
            if !is_app_limited || rate >= self.rate().unwrap_or(0) {
                self.rate.update(self.rounds, Largest(rate));
            }
        }
        let is_old = self.shortest_us != u64::MAX && now_ns.saturating_sub(self.shortest_ns) > SHORTEST_WINDOW_NS;
        if let Some(round_trip_us) = feedback.round_trip_us
            && (round_trip_us <= self.shortest_us || is_old)
        {
            (self.shortest_us, self.shortest_ns) = (round_trip_us.max(1), now_ns);
        }
        self.check_full(is_round, is_app_limited);
        self.next_phase(now_ns, feedback);
        self.probe_shortest(now_ns, is_old, feedback.in_flight_bytes);
    }

    fn sent(&mut self, _now_ns: u64, _bytes: u64, _in_flight_bytes: u64) {}

    fn silence(&mut self, _now_ns: u64) {}

    fn bytes_per_s(&self) -> u64 {
        scaled(self.rate().unwrap_or(self.initial_rate), self.pacing_gain).max(self.packet_bytes)
    }

    fn window_bytes(&self) -> u64 {
        let least = PACKETS_MIN * self.packet_bytes;
        if self.phase == Phase::ProbeShortest {
            return least;
        }
        // Three more, so that a pace is kept while feedback is under way.
        (self.product_bytes(self.window_gain) + 3 * self.packet_bytes).max(least)
    }

    fn path_bytes_per_s(&self) -> Option<u64> {
        self.rate()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flight::RateSample;

    const MS: u64 = 1_000_000;
    const PACKET: u64 = 1200;
    /// The path: bytes a second, and a round trip.
    const RATE: u64 = 8_000_000;
    const ROUND_TRIP_US: u64 = 20_000;
    const PRODUCT: u64 = RATE * ROUND_TRIP_US / 1_000_000;

    struct Path {
        bbr: XPace,
        now_ns: u64,
        delivered: u64,
        round_trip_us: u64,
        is_app_limited: bool,
    }

    impl Path {
        fn new() -> Self {
            let bbr = XPace::new(PACKET, ROUND_TRIP_US);
            Self { bbr, now_ns: 1000 * MS, delivered: 0, round_trip_us: ROUND_TRIP_US, is_app_limited: false }
        }

        /// FEEDBACK after a time, which ends a round trip. Returns the gain.
        fn feedback(&mut self, after_ns: u64, rate: u64, in_flight_bytes: u64, lost_bytes: u64) -> f64 {
            self.now_ns += after_ns;
            let delivered_before = self.delivered;
            self.delivered += PACKET;
            let sample = RateSample { bytes: rate / 1000, interval_ns: MS, is_app_limited: self.is_app_limited };
            self.bbr.feedback(
                self.now_ns,
                &Feedback {
                    came_bytes: PACKET,
                    lost_bytes,
                    marked_packets: 0,
                    in_flight_bytes,
                    delivered: self.delivered,
                    delivered_before,
                    rate: Some(sample),
                    round_trip_us: Some(self.round_trip_us),
                    one_way_us: None,
                    came_us: self.now_ns / 1000,
                    sent_ns: 0,
                    packet_bytes: PACKET,
                    was_held: false,
                },
            );
            self.bbr.bytes_per_s() as f64 / self.bbr.path_bytes_per_s().expect("known") as f64
        }

        /// A round trip with so much under way.
        fn round(&mut self, in_flight_bytes: u64) -> f64 {
            self.feedback(21 * MS, RATE, in_flight_bytes, 0)
        }

        fn cruising() -> Self {
            let mut path = Self::new();
            (0..4).for_each(|_| _ = path.round(3 * PRODUCT));
            assert_eq!(path.round(PRODUCT), 1.0);
            path
        }
    }

    fn is_near(gain: f64, expected: f64) -> bool {
        (gain - expected).abs() < 0.001
    }

    #[test]
    fn startup_ends_after_three_rounds_without_growth_and_is_drained() {
        let mut path = Path::new();
        for rate in [RATE / 8, RATE / 4, RATE / 2, RATE] {
            let gain = path.feedback(21 * MS, rate, 3 * PRODUCT, 0);
            assert!(is_near(gain, HIGH_GAIN), "{gain} at {rate}");
        }
        // Less than a quarter more is no growth.
        for rate in [RATE, RATE * 11 / 10] {
            let gain = path.feedback(21 * MS, rate, 3 * PRODUCT, 0);
            assert!(is_near(gain, HIGH_GAIN), "{gain} at {rate}");
        }
        for in_flight in [3 * PRODUCT, 2 * PRODUCT, PRODUCT * 5 / 4] {
            let gain = path.round(in_flight);
            assert!(is_near(gain, 1.0 / HIGH_GAIN), "{gain} with {in_flight} bytes under way");
        }
        let gain = path.round(PRODUCT);
        assert!(is_near(gain, 1.0), "{gain} once what startup has filled is gone");
    }

    #[test]
    fn rounds_in_which_the_application_sends_less_do_not_end_startup() {
        let mut path = Path::new();
        path.is_app_limited = true;
        (0..10).for_each(|_| _ = path.round(0));
        assert_eq!(path.bbr.phase, Phase::Startup);
    }

    #[test]
    fn more_is_probed_for_once_in_eight_round_trips_and_drained_in_the_next() {
        let mut path = Path::cruising();
        let gains: Vec<f64> = (0..40).map(|_| path.round(PRODUCT * 5 / 4)).collect();
        for eight in gains.windows(8) {
            let count = |of: f64| eight.iter().filter(|gain| is_near(**gain, of)).count();
            assert_eq!([1.25, 0.75, 1.0].map(count), [1, 1, 6], "{gains:?}");
        }
        for pair in gains.windows(2).filter(|pair| is_near(pair[0], 1.25)) {
            assert!(is_near(pair[1], 0.75), "{gains:?}");
        }
    }

    #[test]
    fn probe_goes_on_until_the_path_is_full_or_loses() {
        let mut path = Path::cruising();
        while !is_near(path.round(PRODUCT), 1.25) {}
        (0..5).for_each(|_| assert!(is_near(path.round(PRODUCT), 1.25)));
        assert!(is_near(path.feedback(21 * MS, RATE, PRODUCT, PACKET), 0.75), "a packet was lost");
        // What is left under way after a part of a round trip ends the draining.
        assert!(is_near(path.feedback(5 * MS, RATE, PRODUCT * 11 / 10, 0), 0.75));
        assert!(is_near(path.feedback(MS, RATE, PRODUCT, 0), 1.0));
    }

    #[test]
    fn shortest_round_trip_is_measured_anew_after_ten_seconds_for_200_ms() {
        let mut path = Path::cruising();
        let began_ns = path.now_ns;
        path.round_trip_us = 25_000;
        while path.now_ns - began_ns <= SHORTEST_WINDOW_NS {
            assert!(path.bbr.window_bytes() > PRODUCT, "at {} ms", (path.now_ns - began_ns) / MS);
            path.round(PRODUCT);
        }
        assert_eq!(path.bbr.window_bytes(), PACKETS_MIN * PACKET);
        // It begins once little is under way.
        for in_flight in [PRODUCT, PRODUCT / 2, PACKETS_MIN * PACKET] {
            assert!(is_near(path.round(in_flight), 1.0) && path.bbr.window_bytes() == PACKETS_MIN * PACKET);
        }
        let probes_ns = path.now_ns;
        while path.now_ns - probes_ns + 10 * MS < PROBE_NS {
            path.feedback(10 * MS, RATE, PACKETS_MIN * PACKET, 0);
            assert_eq!(path.bbr.window_bytes(), PACKETS_MIN * PACKET);
        }
        path.feedback(10 * MS, RATE, PACKETS_MIN * PACKET, 0);
        assert!(path.bbr.phase == Phase::Cruise && path.bbr.window_bytes() > 2 * PRODUCT);
        assert_eq!(path.bbr.shortest_us, 25_000, "the shorter one of before does not count any more");
    }
}
