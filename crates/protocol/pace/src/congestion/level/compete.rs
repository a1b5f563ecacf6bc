// SPDX-License-Identifier: Apache-2.0
//! Beside senders that fill queues: a window by losses, as theirs, for a while; and whether it is they who fill the queue.

use super::{CROWDED_ROUNDS, CROWDED_TARGETS, Level, Phase, as_f64};

/// Others fill the queue if it is crowded for this share of time, though the rate has become so much slower, or is a
/// small share of the link. Both over so many round trips, and so long.
const PRESSED: f64 = 0.65;
const PRESSED_LEAST: f64 = 0.1;
const PRESSED_SLOWER: f64 = 0.5;
const PRESSED_SHARE: f64 = 0.4;
const PRESSED_ROUNDS: f64 = 8.0;
const PRESSED_US: f64 = 400_000.0;
const PRESSED_PACKETS: f64 = 16.0;
/// A queue is long by the target of this share of the link at least: a flow that is left with less would take it for short.
const PRESSED_RATE: f64 = 0.125;
/// How much longer the flow competes than it took to find out.
const COMPETES: f64 = 10.0;
/// The window it begins with gives it this share of the link at least.
const COMPETES_SHARE: f64 = 0.4;
/// Growth of its window in a second, at least a packet in a round trip, and the cut in a round trip with losses: some
/// times the share lost, within bounds. TCP CUBIC grows by about as much, and is cut by 0.3.
const COMPETES_GROWTH: f64 = 0.1;
const COMPETES_LOSS: f64 = 3.0;
const COMPETES_CUT: [f64; 2] = [0.05, 0.3];
/// Packets in its window at least. With less than one nothing would leave, and no feedback would ever change that.
const WINDOW_PACKETS: f64 = 2.0;
/// Its window is at least for this share of the link while so much is lost: others that do not answer to losses (BBR) would leave
/// nothing. If less is lost they do answer; if more, there are too many.
const COMPETES_LEAST: f64 = 0.35;
pub(super) const COMPETES_LOSSES: std::ops::Range<f64> = 0.05..0.3;
/// After so many round trips, and then after twice as many each time, the flow yields for so many: it leaves so much room that a queue
/// of its own would be gone. It keeps this share of what is under way at least.
const YIELDS_AFTER: u64 = 4;
const YIELDS_ROUNDS: u64 = 2;
const YIELDS_LEAST: f64 = 0.25;
/// The queue was its own if less than this share of it is left; or less than the second share, and no more than a packet takes: by so
/// much a path seems longer whose link has become slower.
const YIELDS_LEFT: [f64; 2] = [0.12, 0.3];

/// A flow that competes with others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Competing {
    /// Bytes under way while it does not yield.
    window: f64,
    /// It ends with this round trip.
    until_round: u64,
    /// It yields from this round trip on, and after so many more the next time.
    yields_round: u64,
    yields_after: u64,
    /// The queue as it began to yield, and the bytes under way meanwhile.
    yields: Option<(f64, f64)>,
}

impl Competing {
    /// Bytes under way.
    pub(super) fn window(&self) -> f64 {
        self.yields.map_or(self.window, |(_, window)| window.min(self.window))
    }
}

impl Level {
    /// Others press this flow, if that lasts.
    fn is_pressed(&self) -> bool {
        let least = PRESSED_RATE * self.unpressed_rate.max(self.pairs.link().unwrap_or(0.0));
        let target_us = self.target_at_us(self.rate.max(least)) + self.queue.noise_us();
        self.queue_us() > CROWDED_TARGETS * target_us + CROWDED_ROUNDS * self.path_us()
    }

    /// Others fill the queue, if it stays although this flow has slowed down far. Whether they still do is tried again
    /// after a while.
    pub(super) fn compete(&mut self, lost: f64, in_flight: f64) {
        self.rounds += 1;
        if let Phase::Competes(competing) = self.phase {
            self.go_on_competing(competing, lost, in_flight);
            return;
        }
        // Over as many round trips as it takes, and not less than some time.
        let least_us = PRESSED_US.max(PRESSED_PACKETS * self.packet_us());
        let rounds = (least_us / self.round_trip_us).max(PRESSED_ROUNDS);
        self.pressed += (f64::from(u8::from(self.is_pressed())) - self.pressed) / rounds;
        if self.pressed < PRESSED_LEAST {
            // A rate that is not used says nothing of the path.
            self.unpressed_rate = self.delivered_per_s().map_or(self.rate, |delivered| self.rate.min(delivered));
        }
        let is_slow = self.rate * (1.0 - self.drain) < PRESSED_SLOWER * self.unpressed_rate;
        if self.pressed > PRESSED && (is_slow || self.share() < PRESSED_SHARE) {
            let share = self.pairs.link().map_or(0.0, |link| COMPETES_SHARE * link);
            let window = self.unpressed_rate.max(share) * self.round_trip_us / 1e6;
            let window = window.max(WINDOW_PACKETS * as_f64(self.packet_bytes));
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rounds")]
            let until_round = self.rounds + (COMPETES * rounds) as u64;
            self.phase = Phase::Competes(Competing {
                window,
                until_round,
                yields_round: self.rounds + YIELDS_AFTER,
                yields_after: YIELDS_AFTER,
                yields: None,
            });
        }
    }

    fn go_on_competing(&mut self, mut competing: Competing, lost: f64, in_flight: f64) {
        let packet = as_f64(self.packet_bytes);
        let window = competing.window;
        competing.window = if lost > 0.0 {
            window * (1.0 - (lost * COMPETES_LOSS).clamp(COMPETES_CUT[0], COMPETES_CUT[1]))
        } else {
            window + packet.max(COMPETES_GROWTH * window * self.round_trip_us / 1e6)
        };
        let share = if COMPETES_LOSSES.contains(&self.loss) { COMPETES_LEAST } else { 0.0 };
        let least = share * self.pairs.fast_link().unwrap_or(0.0) * self.round_trip_us / 1e6;
        competing.window = competing.window.max(least).max(WINDOW_PACKETS * packet);
        let is_own = self.yields(&mut competing, in_flight);
        if is_own {
            // What was lost is no sign of others.
            self.lately_lost = 0.0;
        }
        if is_own || self.rounds >= competing.until_round || self.queue.standing_us() <= self.target_us() {
            self.phase = Phase::Steady;
            self.rate = self.delivered_per_s().unwrap_or(self.rate);
            self.pressed = 0.0;
        } else {
            self.phase = Phase::Competes(competing);
        }
    }

    /// A queue that only this flow fills is gone once it leaves room for it; of a shared one the others' part stays. Returns whether
    /// the queue has turned out to be its own.
    fn yields(&mut self, competing: &mut Competing, in_flight: f64) -> bool {
        if self.rounds < competing.yields_round {
            return false;
        }
        let queue_us = self.queue.recent_us();
        if let Some((before_us, _)) = competing.yields {
            competing.yields = None;
            competing.yields_after *= 2;
            competing.yields_round = self.rounds + competing.yields_after;
            let packet_us = as_f64(self.packet_bytes) * 1e6 / self.delivered_per_s().unwrap_or(self.rate).max(1.0);
            return queue_us < YIELDS_LEFT[0] * before_us || queue_us < packet_us.min(YIELDS_LEFT[1] * before_us);
        }
        let share = (1.0 - queue_us / self.round_trip_us).max(YIELDS_LEAST);
        competing.yields = Some((queue_us, (share * in_flight).max(WINDOW_PACKETS * as_f64(self.packet_bytes))));
        competing.yields_round = self.rounds + YIELDS_ROUNDS;
        false
    }
}
