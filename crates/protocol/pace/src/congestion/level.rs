// SPDX-License-Identifier: Apache-2.0
//! Holds a queue of a part of one packet, instead of filling one and draining it.
//!
//! BBR learns that a path takes no more by sending more than it takes, for a round trip in eight: what X-PACE's paper
//! leaves of queues are these peaks, and the one of the startup (§V-A3). Here the one-way delay of each packet is
//! measured by the receiver's clock. What exceeds the shortest of the last seconds is the queue ([`queue`]).
//!
//! - **Startup.** Packets leave in pairs. The time between the two at the receiver is the path's pace, by the middle one
//!   of a few pairs. The rate begins at a sixteenth of that and more than doubles each round trip, until a queue shows. Where jitter moves the
//!   two of a pair by as much as the link does, the rate waits at a third of it until two trains of up to ten packets say more.
//! - **Steady.** The rate grows slowly without a queue and shrinks with one, by the logarithm of the queue over the
//!   *target*. The target is longer for slower flows, so flows that share a queue come to the same rate. This is the
//!   argument of Copa (Arun and Balakrishnan, NSDI 2018), with a target by the square root of the pace.
//! - **Crowded.** If the queue is far above the target, the rate is what the path delivers.
//! - **Beside senders that fill queues** nothing would be left. If the queue stays although the rate has fallen to
//!   half, a window by losses decides for a while.
//! - **A path that has become faster** shows no queue at a rate that had one before. Growth doubles each round trip. With jitter, when queues
//!   show late, it is slow above the link's rate as it is known, and trains measure that again.

mod compete;
mod deliveries;
mod drift;
mod pairs;
mod queue;

use compete::{COMPETES_LOSSES, Competing};
use deliveries::Deliveries;
use drift::Drift;
use pairs::{KEPT as PAIRS_KEPT, PAIR, Pairs};
use queue::Queue;

use super::{Congestion, FEEDBACK_LEAST_NS, Feedback, TOGETHER_NS};

/// The target queue in microseconds is this times the square root of the own pace in microseconds: 0.08 packets at
/// 1.6 Mbit/s, 2 packets at 1 Gbit/s. Clocks and interrupts can tell it at any rate.
const TARGET_FACTOR: f64 = 5.85;
/// As long as the queue that packets make which leave together, for paces from none up to those that leave one by one.
const TOGETHER_US: f64 = TOGETHER_NS as f64 / 1e3;
const TOGETHER_PACE_US: f64 = TOGETHER_US / 2.0;
/// How long FEEDBACK waits at least.
const FEEDBACK_US: f64 = FEEDBACK_LEAST_NS as f64 / 1e3;
/// Packets in a round trip at first; over a long one as many in a part of it, up to ten in all (RFC 6928).
const START_PACKETS: u64 = 2;
const START_US: u64 = 100_000;
const START_PACKETS_MAX: u64 = 10;
/// So many pairs have to be measured, as jitter moves the packets of one together or apart.
const START_PAIRS: usize = 3;
/// Packets between two pairs: at first, then until there are as many as are kept, and later, while the flow has less of the link
/// than this share.
const PAIRS_APART: [u64; 3] = [0, 4, 100];
const PAIRS_SHARE: f64 = 0.9;
/// How much the gap between packets varies while other flows use the link, and on a path that delivers in bursts.
const GAP_VARIES: [f64; 2] = [0.1, 0.15];
/// Longest time between bursts that is not taken for a queue.
const BURSTS_MAX_US: f64 = 10_000.0;
/// The share of what pairs say at which the rate waits for trains.
const TRAINS_SHARE: f64 = 0.35;
/// After a train nothing leaves for as long as it takes on the link, times this, or for its packets at the rate, if that is sooner.
const TRAIN_RESTS: f64 = 3.0;
/// The rate between two packets that leave at once.
const AT_ONCE: u64 = u64::MAX / 2;
/// The first rate, as a share of the link's.
const STARTUP_SHARE: f64 = 0.0625;
/// Growth in startup, in each round trip.
const STARTUP_GROWTH: f64 = 1.4;
/// The share of the link's rate that counts as having had a queue, once the startup has come to that rate without one.
const CEILING: f64 = 0.92;
/// Growth in a second without a queue: on a calm path, and after the start or a crowd, while flows have yet to come to
/// their shares.
const GROWTH_PER_S: [f64; 2] = [0.05, 0.3];
/// The rate while an application sends less than it might, in rates of that; and how it grows to that in a round trip.
const APP_ROOM: f64 = 2.0;
const APP_GROWTH: f64 = 0.25;
/// It counts as one that does after so many round trips.
const APP_ROUNDS: u32 = 4;
/// The rate does not grow above so many times what is delivered: twice that comes of growth alone.
const UNUSED: f64 = 3.0;
/// Smallest share of a link that counts.
const SHARE_MIN: f64 = 1.0 / 32.0;
/// Time in which a path becomes calm.
const CALM_S: f64 = 6.0;
/// Round trip, with the time of a few packets, from which growth is slower; and how much slower it becomes at most.
const PROMPT_US: f64 = 60_000.0;
const SLOWNESS_MAX: f64 = 4.0;
/// Decrease for a queue of `e` targets, in growths.
const DECREASE: f64 = 3.5;
/// Largest logarithm of queue over target that counts.
const EXCESS_MAX: f64 = 3.0;
/// How much of what the path delivers is left by the decrease.
const DECREASE_FLOOR: f64 = 0.85;
/// The path counts as faster if there is no queue at a rate by this factor above one that had a queue.
const FASTER: f64 = 1.1;
/// Growth in a round trip once the path counts as faster, at first and at most.
const FASTER_GROWTH: [f64; 2] = [0.02, 0.5];
/// Growth ends at once if two packets find a queue of so many targets, and so many changes from packet to packet.
const QUEUED_TARGETS: f64 = 3.0;
const QUEUED_CHANGES: f64 = 2.0;
/// A queue is long suddenly if a few packets find so many changes more than a crowded one.
const SUDDEN_CHANGES: f64 = 6.0;
/// A queue is crowded from so many targets on, and this share of a round trip more.
const CROWDED_TARGETS: f64 = 4.0;
const CROWDED_ROUNDS: f64 = 1.0 / 16.0;
/// Round trips, and own packets, in which an excess of the queue is drained.
const DRAIN_ROUNDS: f64 = 2.0;
const DRAIN_PACKETS: f64 = 6.0;
/// Largest share by which the rate is reduced to drain, and raised to have the target queue.
const DRAIN_MAX: f64 = 0.75;
const LEAN_MAX: f64 = 0.01;
/// Round trips after which a queue that does not change is none.
const FLAT_ROUNDS: f64 = 8.0;
/// Weight of a round trip in the share of marked packets, and the share at which the path is not faster.
const MARKS_WEIGHT: f64 = 1.0 / 16.0;
const MARKS_MAX: f64 = 0.1;
/// The share of lost packets that a path may lose by itself.
const LOSS_MAX: f64 = 0.2;
/// Three standard deviations of the share lost in a round trip, at one lost in ten in bursts of three, times the root of the packets.
const LOSS_CHANCE: f64 = 2.0;
/// The rate is cut by this at most.
const LOSS_CUT_MAX: f64 = 0.5;
/// The rate is not what matters if after a cut and so many time constants of the share lost this much of it is left; then more by this
/// factor is borne.
const LOSS_STAYS: f64 = 0.75;
const LOSS_BORNE: f64 = 1.25;
const CUT_WAITS: f64 = 1.5;
/// Packets over which the share of lost ones is taken, and the weight of a round trip at most.
const LOSS_PACKETS: f64 = 100.0;
const LOSS_WEIGHT: f64 = 1.0 / 8.0;
/// Weight of a round trip in what was lost lately.
const LATELY_WEIGHT: f64 = 0.25;
/// Fastest rate in bytes a second: of 100 Gbit/s.
const RATE_MAX: f64 = 12.5e9;

/// The controller that levels the queue.
#[derive(Debug)]
pub struct Level {
    packet_bytes: u64,
    phase: Phase,
    /// Bytes a second, without what drains the queue.
    rate: f64,
    /// The share by which the rate is reduced for now.
    drain: f64,
    pairs: Pairs,
    /// The last rate that had a queue.
    queued_rate: f64,
    /// Growth in a round trip, while the path counts as faster.
    growth: f64,
    /// The gap after the last packet, in gaps of the rate.
    gap: f64,
    /// The rate has grown above the link's, as it was known then.
    is_beyond: bool,
    /// The share of packets that were marked (ECN), over some round trips.
    marked: f64,
    /// From 1 at the start, and after a crowd, to 0 on a calm path.
    unrest: f64,
    /// Smoothed, with the queue.
    round_trip_us: f64,
    drift: Drift,
    queue: Queue,
    deliveries: Deliveries,
    last_ns: u64,
    /// Feedback has not come in time, and not since.
    is_silent: bool,
    /// The rate before that, until it is reached again; 0 for none.
    resumes: f64,
    /// Of what was under way then no longer queue can be left.
    silent_us: f64,
    /// Since the last delay was known feedback has not come in time, and has come again.
    has_resumed: bool,
    /// What has come and what was lost since the round began.
    round_until: u64,
    round_came: u64,
    round_marked: u64,
    round_is_app_limited: bool,
    /// Round trips in a row in which the application sent less than it might.
    app_limited_rounds: u32,
    /// Bytes sent, delivered, and lost so far.
    sent: u64,
    delivered: u64,
    net_lost: u64,
    /// Bytes that others have sent on this connection: a controller may begin in its middle.
    sent_before: Option<u64>,
    rounds: u64,
    /// The share of time in which the queue was crowded, and the rate before.
    pressed: f64,
    unpressed_rate: f64,
    /// The share of bytes lost, over some round trips.
    loss: f64,
    /// The same over the last few, however few packets they had.
    lately_lost: f64,
    /// The share of lost packets that the rate is not cut for, the share that it was cut for last, and the time constants of `loss` until it
    /// may be cut again.
    bears: f64,
    cut_for: Option<f64>,
    cut_waits: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    /// Nothing is known.
    Start,
    /// The link's rate is known; what other flows leave of it is not.
    Startup,
    Steady,
    /// Others fill the queue.
    Competes(Competing),
}

impl Level {
    /// `packet_bytes`: of the largest packet. `round_trip_us`: as the handshake took it.
    #[must_use]
    pub fn new(packet_bytes: u64, round_trip_us: u64) -> Self {
        let round_trip_us = round_trip_us.max(100);
        let packets = (START_PACKETS * round_trip_us / START_US).clamp(START_PACKETS, START_PACKETS_MAX);
        Self {
            packet_bytes,
            phase: Phase::Start,
            rate: as_f64(packets * packet_bytes) * 1e6 / as_f64(round_trip_us),
            drain: 0.0,
            pairs: Pairs::new(),
            queued_rate: 0.0,
            growth: 0.0,
            unrest: 1.0,
            marked: 0.0,
            gap: 1.0,
            is_beyond: false,
            round_trip_us: as_f64(round_trip_us),
            drift: Drift::new(),
            queue: Queue::new(),
            deliveries: Deliveries::new(),
            last_ns: 0,
            round_until: 0,
            round_came: 0,
            round_marked: 0,
            round_is_app_limited: false,
            app_limited_rounds: 0,
            sent: 0,
            delivered: 0,
            net_lost: 0,
            sent_before: None,
            is_silent: false,
            resumes: 0.0,
            silent_us: 0.0,
            has_resumed: false,
            rounds: 0,
            pressed: 0.0,
            unpressed_rate: 0.0,
            loss: 0.0,
            lately_lost: 0.0,
            bears: LOSS_MAX,
            cut_for: None,
            cut_waits: 0.0,
        }
    }

    fn packet_us(&self) -> f64 {
        as_f64(self.packet_bytes) * 1e6 / self.rate.max(1.0)
    }

    /// The slowest rate.
    fn least(&self) -> f64 {
        2.0 * as_f64(self.packet_bytes) * 1e6 / self.round_trip_us.max(100_000.0)
    }

    /// The share of the link that this flow has.
    fn share(&self) -> f64 {
        self.pairs.link().map_or(1.0, |link| (self.rate / link).clamp(SHARE_MIN, 1.0))
    }

    /// The wanted queue.
    fn target_us(&self) -> f64 {
        self.base_target_us() + self.queue.noise_us()
    }

    /// The same on a path without jitter.
    fn base_target_us(&self) -> f64 {
        self.target_at_us(self.rate)
    }

    /// The same at another rate.
    fn target_at_us(&self, rate: f64) -> f64 {
        let packet_us = as_f64(self.packet_bytes) * 1e6 / rate.max(1.0);
        let share = self.pairs.link().map_or(1.0, |link| (rate / link).clamp(SHARE_MIN, 1.0));
        // Packets that leave together make a queue of their own, where the path is no faster than they are meant to leave.
        let together_us = TOGETHER_US * (1.0 - packet_us / TOGETHER_PACE_US).max(0.0);
        // Where a path delivers in bursts a packet waits for the next one: a flow in step with them would see that as a queue.
        let bursts_us = if self.pairs.are_together() { packet_us.min(BURSTS_MAX_US) } else { 0.0 };
        TARGET_FACTOR * packet_us.sqrt() * share.powf(-0.25) + together_us.max(bursts_us)
    }

    /// A few packets have waited: sooner than a standing queue, and less sure.
    fn is_queued_now(&self) -> bool {
        self.queue.recent_us() > QUEUED_TARGETS * self.target_us() + QUEUED_CHANGES * self.queue.change_us()
    }

    /// The standing queue, or one that has become long suddenly.
    fn queue_us(&self) -> f64 {
        let (standing_us, recent_us) = (self.queue.standing_us(), self.queue.recent_us());
        let is_sudden = recent_us > self.crowded_us() + SUDDEN_CHANGES * self.queue.change_us();
        if is_sudden { standing_us.max(recent_us) } else { standing_us }
    }

    fn crowded_us(&self) -> f64 {
        CROWDED_TARGETS * self.target_us() + CROWDED_ROUNDS * self.path_us()
    }

    fn is_crowded(&self) -> bool {
        self.queue_us() > self.crowded_us()
    }

    /// The round trip without the queue.
    fn path_us(&self) -> f64 {
        (self.round_trip_us - self.queue.standing_us()).max(100.0)
    }

    /// The time in which the delivery rate is measured.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time")]
    fn span_us(&self) -> u64 {
        self.path_us().max(4.0 * self.packet_us()).max(8000.0) as u64
    }

    /// What the path delivers, with what it loses by itself.
    fn delivered_per_s(&self) -> Option<f64> {
        Some(self.deliveries.bytes_per_s(self.span_us())? / (1.0 - self.loss.min(LOSS_MAX)))
    }

    /// An application that sends less than it might fills no queue: what seems to be one is noise of the hosts, and what is
    /// delivered says nothing of the path. So that the path is not taken for as slow as the application, the rate becomes twice
    /// what that sends, if the link is known to take it.
    ///
    /// A thread that is woken late makes a round trip look so, too: only several in a row count.
    fn app_limited(&mut self, rounds: f64) {
        if self.app_limited_rounds < APP_ROUNDS {
            return;
        }
        let Some(delivered) = self.delivered_per_s() else { return };
        let most = (APP_ROOM * delivered).min(self.pairs.sure_link().unwrap_or(f64::INFINITY));
        if self.rate < most {
            self.rate = (self.rate * (1.0 + APP_GROWTH * rounds)).min(most);
        }
    }

    fn startup(&mut self, rounds: f64, queue_us: f64, target_us: f64) {
        if self.round_is_app_limited && !self.is_crowded() {
            self.app_limited(rounds);
        } else if queue_us > 2.0 * target_us || self.is_queued_now() {
            let delivered = self.delivered_per_s();
            self.rate = delivered.map_or(self.rate, |delivered| self.rate.min(delivered));
            self.phase = Phase::Steady;
        } else if !self.round_is_app_limited {
            self.rate *= 1.0 + STARTUP_GROWTH * rounds;
            if self.awaits_trains() {
                let link = as_f64(self.packet_bytes) * 1e6 / self.pairs.gap_us();
                self.rate = self.rate.min(TRAINS_SHARE * link);
            } else if let Some(link) = self.pairs.sure_link().filter(|link| *link <= self.rate) {
                self.rate = link;
                if self.phase == Phase::Start && self.pairs.has_jitter(self.queue.mean_change_us()) {
                    // Fewer pairs than it takes say little.
                    self.queued_rate = link;
                    return;
                }
                self.unrest = self.pairs.spread();
                self.phase = Phase::Steady;
                // The pair may have met a burst of the link: growth is soon faster, if no queue shows.
                self.queued_rate = CEILING * link;
                return;
            }
        }
        self.queued_rate = self.rate;
    }

    fn steady(&mut self, passed_us: f64, rounds: f64, queue_us: f64, target_us: f64) {
        if self.round_is_app_limited && !self.is_crowded() {
            self.app_limited(rounds);
            return;
        }
        if self.growth == 0.0 {
            self.resumes = 0.0;
        }
        let excess = (queue_us.max(1.0) / target_us).ln().min(EXCESS_MAX);
        let delivered = self.delivered_per_s().filter(|_| !self.round_is_app_limited);
        if let Some(delivered) = delivered {
            self.pairs.at_least(delivered * (1.0 - self.loss.min(LOSS_MAX)));
        }
        // What is not sent cannot show whether it would be too much.
        let is_unused = delivered.is_some_and(|delivered| self.rate > UNUSED * delivered);
        let passed_s = passed_us / 1e6;
        let path_us = self.path_us();
        let growth = GROWTH_PER_S[0] + (GROWTH_PER_S[1] - GROWTH_PER_S[0]) * self.unrest;
        // Slower, and for longer, where the answer of the path takes longer.
        let slowness = ((path_us + 4.0 * self.packet_us() + 8000.0) / PROMPT_US).clamp(1.0, SLOWNESS_MAX);
        let growth = growth / slowness;
        self.unrest *= 1.0 - passed_s / (CALM_S * slowness);
        // Marks say the same of a queue that is too short for the clocks.
        self.rate *= 1.0 - DECREASE * growth * EXCESS_MAX * self.marked * passed_s * self.share().sqrt();
        if self.marked > MARKS_MAX {
            self.growth = 0.0;
        }
        if excess > 0.0 {
            let grew = std::mem::take(&mut self.growth) > 0.0;
            if grew && self.pairs.has_trains() && (queue_us > 2.0 * target_us || self.is_queued_now()) {
                self.rate = self.rate.min(delivered.unwrap_or(self.rate).max(self.queued_rate));
            }
            if self.is_crowded()
                && let Some(delivered) = delivered.filter(|delivered| *delivered < self.rate)
            {
                self.unrest = self.unrest.max((4.0 * (1.0 - delivered / self.rate)).min(1.0));
                self.rate = delivered;
            }
            if delivered.is_none_or(|delivered| self.rate > DECREASE_FLOOR * delivered) {
                self.rate *= 1.0 - DECREASE * growth * excess * passed_s * self.share().sqrt();
            }
            self.queued_rate = delivered.unwrap_or(self.rate).max(self.rate);
        } else if self.growth > 0.0 && self.is_queued_now() {
            // Too fast already, though the queue has not stood for long enough.
            self.growth = 0.0;
            let delivered = delivered.unwrap_or(self.rate);
            self.rate = self.rate.min(delivered.max(self.queued_rate));
            self.queued_rate = self.rate;
        } else if !self.round_is_app_limited && !is_unused {
            let is_beyond = self.is_beyond_link();
            if is_beyond && !self.is_beyond {
                self.pairs.again();
            }
            self.is_beyond = is_beyond;
            let faster = if is_beyond { self.growth.min(FASTER_GROWTH[0]) } else { self.growth };
            self.rate *= 1.0 + growth * (-excess).min(1.0) * passed_s * self.share().powf(-0.75) + faster * rounds;
            if self.resumes > 0.0 {
                if self.rate >= self.resumes {
                    (self.rate, self.growth) = (self.resumes, 0.0);
                }
                return;
            }
            if self.rate > FASTER * self.queued_rate && self.marked <= MARKS_MAX {
                self.growth = (self.growth * (1.0 + rounds)).clamp(FASTER_GROWTH[0], FASTER_GROWTH[1]);
            }
        }
    }

    fn steer(&mut self, now_ns: u64) {
        let last_ns = std::mem::replace(&mut self.last_ns, now_ns);
        let passed_us = if last_ns == 0 { 0.0 } else { as_f64(now_ns.saturating_sub(last_ns)) / 1e3 };
        let path_us = self.path_us();
        // On a short path FEEDBACK waits for longer than an eighth of a round trip.
        let waits_us = (FEEDBACK_US - path_us / 8.0).max(0.0);
        let round_us = path_us + self.packet_us() + waits_us;
        let passed_us = passed_us.min(2.0 * round_us);
        let rounds = (passed_us / round_us).min(1.0);
        let target_us = self.target_us();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time")]
        let flat_ns = (FLAT_ROUNDS * path_us * 1e3) as u64;
        if let Some(delivered) = self.delivered_per_s() {
            // The queue of a full buffer does not change either.
            let least_ns = if self.lately_lost >= COMPETES_LOSSES.start { None } else { Some(flat_ns) };
            let share = delivered / self.pairs.link().unwrap_or(delivered).max(delivered);
            self.queue.rebase(now_ns, target_us, share, self.round_trip_us, least_ns);
        }
        let queue_us = self.queue_us();
        match self.phase {
            Phase::Start | Phase::Startup => self.startup(rounds, queue_us, target_us),
            Phase::Competes(competing) => self.rate = competing.window() * 1e6 / self.round_trip_us,
            Phase::Steady => self.steady(passed_us, rounds, queue_us, target_us),
        }
        let drain_us = (DRAIN_ROUNDS * (path_us + waits_us)).max(DRAIN_PACKETS * self.packet_us());
        self.drain = ((queue_us - target_us) / drain_us).clamp(-LEAN_MAX, DRAIN_MAX);
        self.rate = self.rate.clamp(self.least(), RATE_MAX);
    }

    /// Bytes that did not come, and are not under way. Packets that were only late are not lost.
    fn all_lost(&self, in_flight_bytes: u64) -> u64 {
        (self.sent + self.sent_before.unwrap_or(0)).saturating_sub(self.delivered + in_flight_bytes)
    }

    /// The path is back: the former rate is soon reached again, unless a queue shows. What an outage has swallowed is no sign of
    /// congestion, nor is what came meanwhile its rate.
    fn resume(&mut self, in_flight_bytes: u64) {
        self.net_lost = self.all_lost(in_flight_bytes);
        self.deliveries = Deliveries::new();
        if self.phase == Phase::Steady {
            self.growth = FASTER_GROWTH[1];
        }
    }

    /// A round trip has passed.
    fn round(&mut self, in_flight_bytes: u64) {
        let net_lost = self.all_lost(in_flight_bytes);
        let lost = net_lost.saturating_sub(std::mem::replace(&mut self.net_lost, net_lost));
        let all = as_f64(self.round_came + lost);
        self.compete(as_f64(lost) / all.max(1.0), as_f64(in_flight_bytes));
        let weight = (all / (LOSS_PACKETS * as_f64(self.packet_bytes))).min(LOSS_WEIGHT);
        self.loss += (as_f64(lost) / all.max(1.0) - self.loss) * weight;
        self.lately_lost += (as_f64(lost) / all.max(1.0) - self.lately_lost) * LATELY_WEIGHT;
        self.cut_for_losses(as_f64(lost), all, weight);
        // The second packet of a pair waits for the first one, and is no sign of congestion.
        let marked = self.round_marked.saturating_sub(self.pairs.take_sent());
        let share = (as_f64(marked * self.packet_bytes) / all.max(1.0)).min(1.0);
        self.marked += (share - self.marked) * MARKS_WEIGHT;
        (self.round_came, self.round_marked) = (0, 0);
        let is_app_limited = std::mem::take(&mut self.round_is_app_limited);
        self.app_limited_rounds = if is_app_limited { self.app_limited_rounds.saturating_add(1) } else { 0 };
    }

    /// Where much is lost the rate is cut to what came, once: the path may drop what exceeds a rate, without a queue. If as much is lost
    /// after that, it is not the rate that matters.
    fn cut_for_losses(&mut self, lost: f64, all: f64, weight: f64) {
        self.cut_waits -= weight;
        if self.phase != Phase::Steady || self.cut_waits > 0.0 {
            return;
        }
        // Of few packets many may be lost by chance.
        let packets = (all / as_f64(self.packet_bytes)).max(1.0);
        let is_much = lost / all.max(1.0) > self.bears + LOSS_CHANCE / packets.sqrt();
        if lost > 0.0 && (is_much || self.loss > self.bears) {
            if self.cut_for.take().is_some_and(|before| self.loss > LOSS_STAYS * before) {
                self.bears = LOSS_BORNE * self.loss;
                return;
            }
            let share = self.loss.clamp(LOSS_MAX, LOSS_CUT_MAX);
            self.rate *= 1.0 - share;
            self.growth = 0.0;
            self.unrest = 1.0;
            (self.cut_for, self.cut_waits) = (Some(share), CUT_WAITS);
        } else if self.loss < LOSS_MAX / 2.0 {
            (self.bears, self.cut_for) = (LOSS_MAX, None);
        }
    }

    /// A pair of packets has come.
    fn note_pair(&mut self) {
        if self.phase == Phase::Start && self.pairs.are_measured() && self.pairs.count() >= START_PAIRS {
            self.phase = Phase::Startup;
            if let Some(link) = self.pairs.link() {
                self.rate = self.rate.min(link).max(STARTUP_SHARE * link);
            }
        }
    }

    /// The next gap. Flows with the same gaps, or a multiple, would meet in the queue in the same order each time, and
    /// each would see another queue.
    fn vary(&mut self, now_ns: u64) {
        let varies = match self.pairs.are_together() {
            // Packets that leave in step with bursts would see a queue where there is none.
            true => GAP_VARIES[1],
            false if self.share() < PAIRS_SHARE => GAP_VARIES[0],
            false => {
                self.gap = 1.0;
                return;
            }
        };
        // Any number of [-1; 1) that depends on the time alone.
        let bits = (now_ns / 100).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 44;
        let number = as_f64(bits) / f64::from(1 << 19) - 1.0;
        self.gap = 1.0 + varies * number;
    }

    /// On a path with jitter the path counts as faster, and the rate is above the link's as it is known.
    fn is_beyond_link(&self) -> bool {
        let is_above = self.pairs.sure_link().is_some_and(|link| self.rate > link);
        self.pairs.has_trains() && self.growth > 0.0 && self.resumes == 0.0 && is_above
    }

    /// Growth waits until trains have measured the link.
    fn awaits_trains(&self) -> bool {
        let matters = self.phase == Phase::Startup || self.phase == Phase::Steady && self.is_beyond_link();
        matters && self.pairs.awaits_trains()
    }

    /// Packets of the next train; none: a pair is next.
    fn next_train(&self) -> Option<u64> {
        self.pairs.next_train().filter(|_| self.awaits_trains())
    }

    /// After the last packet, in gaps of the rate.
    fn pairs_gap(&self) -> f64 {
        let gap = self.pairs.gap();
        let rests = TRAIN_RESTS * gap * self.pairs.gap_us() / self.packet_us();
        if gap > as_f64(PAIR) { gap.min(rests.max(1.0)) } else { gap }
    }

    /// Packets between two pairs, or trains.
    fn pairs_apart(&self) -> Option<u64> {
        match self.pairs.link() {
            _ if self.awaits_trains() => self.next_train().map(|_| 0),
            Some(_) if self.phase == Phase::Startup && self.pairs.has_trains() => None,
            _ if self.phase == Phase::Start => Some(PAIRS_APART[0]),
            None => Some(PAIRS_APART[1]),
            Some(_) if self.phase == Phase::Startup && self.pairs.count() < PAIRS_KEPT => Some(PAIRS_APART[1]),
            Some(_) if self.share() < PAIRS_SHARE => Some(PAIRS_APART[2]),
            Some(_) => None,
        }
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
        self.round_came += feedback.came_bytes;
        self.delivered = feedback.delivered;
        let known = feedback.delivered + feedback.in_flight_bytes + feedback.lost_bytes;
        self.sent_before.get_or_insert(known.saturating_sub(self.sent));
        if self.is_silent && feedback.came_bytes > 0 {
            (self.is_silent, self.has_resumed) = (false, true);
            self.resume(feedback.in_flight_bytes);
        }
        self.round_marked += feedback.marked_packets;
        if let Some(round_trip_us) = feedback.round_trip_us {
            self.round_trip_us += (as_f64(round_trip_us.max(100)) - self.round_trip_us) / 8.0;
        }
        if let Some(rate) = feedback.rate {
            self.round_is_app_limited |= rate.is_app_limited && !feedback.was_held;
        }
        if let Some(one_way_us) = feedback.one_way_us {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time")]
            let bucket_ns = (self.path_us() * 250.0) as u64;
            let one_way_us = match feedback.round_trip_us {
                Some(round_trip_us) => self.drift.corrected(now_ns, one_way_us, round_trip_us),
                None => one_way_us,
            };
            if std::mem::take(&mut self.has_resumed) && self.queue.above_us(one_way_us) > self.silent_us {
                // The path has become longer.
                self.queue.forget();
            }
            self.deliveries.add(feedback.came_us, feedback.delivered, self.span_us());
            // The second packet of a pair has waited for the first one.
            let seen_us = [self.queue.mean_change_us(), self.path_us()];
            let Feedback { came_us, sent_ns, came_bytes, delivered, .. } = *feedback;
            if self.pairs.came([came_us, sent_ns], came_bytes, delivered, seen_us) {
                self.note_pair();
            } else {
                self.queue.add(now_ns, one_way_us, bucket_ns, self.base_target_us(), self.is_crowded());
            }
            self.steer(now_ns);
        }
        if feedback.came_bytes > 0 && feedback.delivered_before >= self.round_until {
            self.round_until = feedback.delivered;
            self.round(feedback.in_flight_bytes);
        }
    }

    fn sent(&mut self, now_ns: u64, bytes: u64, in_flight_bytes: u64) {
        self.sent += bytes;
        self.vary(now_ns);
        let apart = self.pairs_apart();
        let packets = self.next_train().unwrap_or(PAIR);
        self.pairs.sent(now_ns, bytes, in_flight_bytes, apart, packets);
    }

    fn silence(&mut self, _now_ns: u64) {
        self.growth = 0.0;
        // In a flow of rare messages the first is a lost packet, with no other behind it.
        if std::mem::replace(&mut self.is_silent, true) {
            self.rate = (self.rate / 2.0).max(self.least());
        } else {
            self.resumes = self.rate;
            let under_way = self.all_lost(0).saturating_sub(self.net_lost);
            self.silent_us = as_f64(under_way) * 1e6 / self.rate;
        }
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate")]
    fn bytes_per_s(&self) -> u64 {
        if matches!(self.phase, Phase::Competes(_)) {
            return self.rate as u64;
        }
        match self.pairs_gap() {
            0.0 => AT_ONCE,
            gap => (self.rate * (1.0 - self.drain) / (gap * self.gap)) as u64,
        }
    }

    fn window_bytes(&self) -> u64 {
        if let Phase::Competes(competing) = self.phase {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes")]
            return competing.window() as u64;
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate")]
        let product = (self.rate * self.round_trip_us / 1e6 * 2.0) as u64;
        // A train is one more than the rate has.
        let packets = 4.max(2 * self.next_train().unwrap_or(0));
        product + packets * self.packet_bytes
    }

    fn is_full(&self) -> bool {
        self.is_crowded() || matches!(self.phase, Phase::Competes(_))
    }

    fn path_bytes_per_s(&self) -> Option<u64> {
        (self.phase != Phase::Start).then_some((self.rate * (1.0 - self.drain)) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share of lost bytes that it sees, if half of all are lost, and so many bytes were delivered before it was made.
    fn seen(before: u64) -> f64 {
        let mut level = Level::new(1200, 20_000);
        let (mut delivered, mut now_ns) = (before, 1_000_000_000);
        for _ in 0..50 {
            let delivered_before = delivered;
            for _ in 0..10 {
                level.sent(now_ns, 1200, 0);
                now_ns += 2_000_000;
            }
            delivered += 6000;
            let feedback = Feedback {
                came_bytes: 6000,
                lost_bytes: 6000,
                marked_packets: 0,
                in_flight_bytes: 0,
                delivered,
                delivered_before,
                rate: None,
                round_trip_us: Some(20_000),
                one_way_us: Some(10_000),
                came_us: now_ns / 1000,
                sent_ns: 0,
                packet_bytes: 1200,
                was_held: false,
            };
            level.feedback(now_ns, &feedback);
        }
        level.loss
    }

    #[test]
    fn losses_are_seen_after_a_change_of_the_path() {
        let (fresh, moved) = (seen(0), seen(1_000_000_000));
        assert!(
            fresh > 0.3 && (fresh - moved).abs() < 0.02,
            "{fresh:.2} of a new connection, {moved:.2} of one that has moved"
        );
    }
}
