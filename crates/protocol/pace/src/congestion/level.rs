// SPDX-License-Identifier: Apache-2.0
//! Holds a queue of a part of one packet, instead of filling one and draining it.
//!
//! BBR learns that a path takes no more by sending more than it takes, for a round trip in eight: what X-PACE's paper
//! leaves of queues are these peaks, and the one of the startup (§V-A3). Here the way there is measured of each
//! packet, by the receiver's clock: what exceeds the shortest of the last seconds is the queue. The rate follows from
//! it, as in Copa (Arun and Balakrishnan, NSDI 2018): the wanted queue is [`TARGET`] of a packet at the sender's own
//! rate, so a sender that is slower than others wants more of the common queue, and all come to the same rate.
//!
//! - **Below the target** the rate grows, at first by little, and twice as fast after each round trip in which the
//!   queue stays empty: a path that has become faster is filled in a few.
//! - **Above it** packets come as fast as the path takes them, so the time between two that were queued is the path's
//!   pace. The rate is set to that, less what drains the excess in two round trips.
//! - **At the start** a few packets leave at once: the time between them, when they come, is the path's pace.
//!
//! **Beside senders that fill queues** nothing would be left for one that avoids them. Where the queue stays although
//! the rate has fallen to half, the rate is BBR's, until the queue is gone for a moment.

use super::{Congestion, Feedback, XPace};
use crate::windowed::{Smallest, Windowed};

/// The wanted queue, in packets at the sender's own rate.
const TARGET: f64 = 0.08;
/// Smallest wanted queue: what clocks and interrupts can tell.
const TARGET_MIN_US: f64 = 100.0;
/// Largest one: of a sender of a packet each 100 ms.
const TARGET_MAX_US: f64 = 15_000.0;
/// How long the shortest way counts. After that the sender leaves out a packet, to see whether there is a shorter.
const BASE_WINDOW_NS: u64 = 10_000_000_000;
/// Packets that leave at once at the start.
const TRAIN: u64 = 2;
/// Growth of the rate in a round trip, at first and at most.
const GROWTH_MIN: f64 = 0.02;
const GROWTH_MAX: f64 = 1.0;
/// The share of lost packets that a path may lose by itself.
const LOSS_MAX: f64 = 0.15;
/// How much longer than wanted a queue has to stay until others are held to fill it, in round trips.
const COMPETES_AFTER: u32 = 8;

/// A packet that came so much later than the fastest has waited for another one.
const QUEUED_US: f64 = 150.0;
/// Round trips in which an excess is drained.
const DRAIN_ROUNDS: f64 = 3.0;

/// Fastest rate in bytes a second: of 100 Gbit/s.
const RATE_MAX: f64 = 12.5e9;

/// Most that the rate is above the path's, to have the wanted queue.
const LEAN_MAX: f64 = 0.01;
/// Round trips without a queue, at a rate that should have made one, after which the path counts as faster.
const GROWS_AFTER: f64 = 6.0;

/// Any constant that makes a difference of two clocks positive.
const CLOCK_ZERO: i64 = 1 << 62;

/// The controller that levels the queue.
#[derive(Debug)]
pub struct Level {
    packet_bytes: u64,
    rate: f64,
    growth: f64,
    /// Round trips without a queue.
    empty_rounds: f64,
    round_trip_us: f64,
    base: Windowed<Smallest>,
    /// The shortest queue of the last half round trip.
    standing: Windowed<Smallest>,
    /// How much the way of packets differs from one to the next without a queue.
    noise_us: f64,
    last_queue_us: Option<f64>,
    last_came_us: Option<u64>,
    last_ns: u64,
    /// Bytes a second between packets that were queued.
    service: [f64; 5],
    served: usize,
    /// What has come and what was lost since the round began.
    round_until: u64,
    round_came: u64,
    round_lost: u64,
    round_marked: u64,
    round_is_app_limited: bool,
    /// Rounds in which the queue was well above the target, and the rate as they began.
    crowded_rounds: u32,
    crowded_rate: f64,
    competes: bool,
    calm_rounds: u32,
    round_queue_min_us: f64,
    sent: u64,
    bbr: XPace,
}

impl Level {
    /// `packet_bytes`: of the largest packet. `round_trip_us`: as the handshake took it.
    #[must_use]
    pub fn new(packet_bytes: u64, round_trip_us: u64) -> Self {
        let round_trip_us = round_trip_us.max(100);
        let window_ns = round_trip_us * 500;
        Self {
            packet_bytes,
            // A train for each round trip, until its packets have come.
            rate: as_f64(TRAIN * packet_bytes) * 1e6 / as_f64(round_trip_us),
            growth: GROWTH_MAX,
            empty_rounds: 0.0,
            round_trip_us: as_f64(round_trip_us),
            base: Windowed::new(BASE_WINDOW_NS),
            standing: Windowed::new(window_ns),
            noise_us: 0.0,
            last_queue_us: None,
            last_came_us: None,
            last_ns: 0,
            service: [0.0; 5],
            served: 0,
            round_until: 0,
            round_came: 0,
            round_lost: 0,
            round_marked: 0,
            round_is_app_limited: false,
            crowded_rounds: 0,
            crowded_rate: 0.0,
            competes: false,
            calm_rounds: 0,
            round_queue_min_us: f64::MAX,
            sent: 0,
            bbr: XPace::new(packet_bytes, round_trip_us),
        }
    }

    /// The wanted queue.
    fn target_us(&self) -> f64 {
        let packet_us = as_f64(self.packet_bytes) * 1e6 / self.rate.max(1.0);
        (TARGET * packet_us).clamp(TARGET_MIN_US, TARGET_MAX_US) + 2.0 * self.noise_us
    }

    /// The rate of packets that were queued: the middle one of the last ones.
    fn service(&self) -> Option<f64> {
        let known = self.served.min(self.service.len());
        if known == 0 {
            return None;
        }
        let mut sorted = self.service;
        sorted[..known].sort_by(f64::total_cmp);
        Some(sorted[known / 2])
    }

    fn note_service(&mut self, queue_us: f64, feedback: &Feedback) {
        let came_us = feedback.came_us;
        let gap_us = self.last_came_us.replace(came_us).map(|last_us| came_us.saturating_sub(last_us));
        // It waited for the one before.
        let was_queued = queue_us > QUEUED_US + 2.0 * self.noise_us;
        if let Some(gap_us) = gap_us.filter(|us| *us > 0)
            && was_queued
            && feedback.came_bytes > 0
        {
            let rate = as_f64(feedback.came_bytes) * 1e6 / as_f64(gap_us);
            let place = self.served % self.service.len();
            self.service[place] = rate;
            self.served += 1;
        }
    }

    fn note_queue(&mut self, now_ns: u64, one_way_us: i64, feedback: &Feedback) -> f64 {
        let absolute = u64::try_from(one_way_us.saturating_add(CLOCK_ZERO)).unwrap_or(0);
        self.base.update(now_ns, Smallest(absolute));
        let base = self.base.get().map_or(absolute, |smallest| smallest.0);
        let queue_us = as_f64(absolute - base.min(absolute));
        self.note_service(queue_us, feedback);
        if let Some(last_us) = self.last_queue_us {
            let change_us = (queue_us - last_us).abs();
            // Without a queue, what changes from packet to packet is noise.
            if queue_us < self.target_us() {
                self.noise_us += (change_us / 4.0 - self.noise_us) / 64.0;
            }
        }
        self.last_queue_us = Some(queue_us);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "less than the clock's constant")]
        self.standing.update(now_ns, Smallest(queue_us as u64));
        self.round_queue_min_us = self.round_queue_min_us.min(queue_us);
        self.standing.get().map_or(queue_us, |smallest| as_f64(smallest.0))
    }

    /// A round trip has passed.
    fn round(&mut self) {
        let all = as_f64(self.round_came + self.round_lost);
        if all > 0.0 && as_f64(self.round_lost) / all > LOSS_MAX {
            self.rate *= 0.85;
            self.growth = GROWTH_MIN;
        }
        if self.round_marked > 0 {
            // As DCTCP and L4S (RFC 9331): by half of the marked share.
            let share = (as_f64(self.round_marked * self.packet_bytes) / all.max(1.0)).min(1.0);
            self.rate *= 1.0 - share / 2.0;
            self.growth = GROWTH_MIN;
        }
        let least_us = std::mem::replace(&mut self.round_queue_min_us, f64::MAX);
        let target_us = self.target_us();
        if least_us < f64::MAX && least_us > 4.0 * target_us {
            if self.crowded_rounds == 0 {
                self.crowded_rate = self.rate;
            }
            self.crowded_rounds += 1;
            self.calm_rounds = 0;
        } else {
            self.crowded_rounds = 0;
            self.calm_rounds += 1;
        }
        if self.crowded_rounds >= COMPETES_AFTER && self.rate < 0.5 * self.crowded_rate {
            self.competes = true;
        }
        if self.competes && self.calm_rounds > 0 {
            self.competes = false;
            self.rate = as_f64(self.bbr.path_bytes_per_s().unwrap_or(self.packet_bytes));
            self.growth = GROWTH_MIN;
        }
        (self.round_came, self.round_lost, self.round_marked) = (0, 0, 0);
        self.round_is_app_limited = false;
    }

    fn steer(&mut self, now_ns: u64, standing_us: f64) {
        let passed_us = as_f64(now_ns.saturating_sub(std::mem::replace(&mut self.last_ns, now_ns))) / 1e3;
        let rounds = (passed_us / self.round_trip_us).min(1.0);
        let target_us = self.target_us();
        self.empty_rounds = if standing_us < target_us / 4.0 { self.empty_rounds + rounds } else { 0.0 };
        match self.service() {
            // The path's rate is known: somewhat more while the queue is shorter than wanted, somewhat less while it is
            // longer.
            Some(service) if self.empty_rounds < GROWS_AFTER => {
                let excess = (standing_us - target_us) / (DRAIN_ROUNDS * self.round_trip_us);
                self.rate = service * (1.0 - excess.clamp(-LEAN_MAX, 0.5));
                self.growth = GROWTH_MIN;
            }
            // It has become faster, or was never filled.
            _ if standing_us <= target_us && !self.round_is_app_limited => {
                self.rate *= 1.0 + self.growth * rounds;
                self.growth = (self.growth * (1.0 + rounds)).min(GROWTH_MAX);
            }
            _ if standing_us > target_us => self.rate *= 1.0 - 0.5 * rounds,
            _ => {}
        }
        self.rate = self.rate.clamp(as_f64(self.packet_bytes) / 2.0, RATE_MAX);
    }
}

#[allow(clippy::cast_precision_loss, reason = "rates and times")]
fn as_f64(number: u64) -> f64 {
    number as f64
}

impl Congestion for Level {
    fn name(&self) -> &'static str {
        "level"
    }

    fn feedback(&mut self, now_ns: u64, feedback: &Feedback) {
        self.bbr.feedback(now_ns, feedback);
        self.round_came += feedback.came_bytes;
        self.round_lost += feedback.lost_bytes;
        self.round_marked += feedback.marked_packets;
        if let Some(round_trip_us) = feedback.round_trip_us {
            self.round_trip_us += (as_f64(round_trip_us.max(100)) - self.round_trip_us) / 8.0;
        }
        if let Some(rate) = feedback.rate {
            self.round_is_app_limited |= rate.is_app_limited;
        }
        if let Some(one_way_us) = feedback.one_way_us {
            let was_unknown = self.served == 0;
            let standing_us = self.note_queue(now_ns, one_way_us, feedback);
            if was_unknown && let Some(service) = self.service() {
                // The first of the train.
                self.rate = service;
                self.growth = GROWTH_MIN;
            }
            self.steer(now_ns, standing_us);
        }
        if feedback.came_bytes > 0 && feedback.delivered_before >= self.round_until {
            self.round_until = feedback.delivered;
            self.round();
        }
    }

    fn sent(&mut self, now_ns: u64, bytes: u64, in_flight_bytes: u64) {
        self.sent += 1;
        self.bbr.sent(now_ns, bytes, in_flight_bytes);
    }

    fn silence(&mut self, now_ns: u64) {
        self.rate = (self.rate / 2.0).max(as_f64(self.packet_bytes) / 2.0);
        self.growth = GROWTH_MIN;
        self.bbr.silence(now_ns);
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate")]
    fn bytes_per_s(&self) -> u64 {
        if self.sent < TRAIN {
            // All at once.
            return u64::MAX / 2;
        }
        if self.competes { self.bbr.bytes_per_s() } else { self.rate as u64 }
    }

    fn window_bytes(&self) -> u64 {
        if self.competes {
            return self.bbr.window_bytes();
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate")]
        let product = (self.rate * self.round_trip_us / 1e6 * 2.0) as u64;
        product + 4 * self.packet_bytes
    }

    fn path_bytes_per_s(&self) -> Option<u64> {
        (self.served > 0).then(|| self.bytes_per_s())
    }
}
