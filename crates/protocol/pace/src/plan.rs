// SPDX-License-Identifier: Apache-2.0
//! How a message is protected: sent again when it is lost, with redundancy ahead, or both (X-PACE §IV-A; M. Gorius'
//! hybrid error control, its reference 8).
//!
//! **Again.** A loss is known a round trip after the packet was sent, and a few packets later; what is sent again needs
//! one way more. So a deadline has room for some number of rounds, and a symbol is lost for good if it was lost in
//! each of them. Rounds are a round trip apart, so that a burst is mostly over.
//!
//! **Ahead.** Of a block of symbols that is sent within a part of the deadline, with coded packets right behind it, up
//! to as many packets may be lost as are coded. What is lost beyond that is asked for again, if there is a round.
//!
//! Sending again costs just what was lost, which is the least that is possible (a channel that loses a share p needs
//! p/(1-p) more packets). So redundancy is added only where the rounds alone do not reach the loss that was asked
//! for, and the smallest that does.

use crate::{block::BLOCK_MAX, flight::REORDERED_MAX, loss::Gilbert};

/// What is known of the path, and wanted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Path {
    pub losses: Gilbert,
    /// Time of a round trip, with what it varies by.
    pub round_trip_ns: u64,
    /// Time from a symbol's sending to its coming.
    pub one_way_ns: u64,
    /// Time between two packets.
    pub pace_ns: u64,
    /// From the time a message is handed over to its expiry.
    pub deadline_ns: u64,
    /// The share of messages that may be lost.
    pub residual_loss: f64,
}

/// How a block is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Times a lost symbol can be sent again.
    pub rounds: u32,
    /// Symbols of a block.
    pub data: usize,
    /// Coded packets behind it; 0 for none.
    pub redundancy: usize,
}

/// Most rounds that are counted on: later ones add nothing that matters.
const ROUNDS_MAX: u32 = 8;

impl Path {
    /// Times that a symbol, first sent `spent_ns` after it was handed over, can be sent again in time.
    #[must_use]
    pub fn rounds(&self, spent_ns: u64) -> u32 {
        let noticed_ns = self.round_trip_ns + (REORDERED_MAX * self.pace_ns).min(self.round_trip_ns / 8 + 1_000_000);
        let room_ns = self.deadline_ns.saturating_sub(spent_ns).saturating_sub(self.one_way_ns);
        u32::try_from(room_ns / noticed_ns.max(1)).unwrap_or(ROUNDS_MAX).min(ROUNDS_MAX)
    }

    /// The probability that a symbol is lost in each of its rounds.
    fn lost_in_all(&self, first: f64, rounds: u32) -> f64 {
        let rate = self.losses.rate();
        // How much of the first packet's bad luck is left a round later.
        let packets = self.round_trip_ns / self.pace_ns.max(1);
        let correlation = self.losses.correlation(i32::try_from(packets).unwrap_or(i32::MAX)).max(0.0);
        let again = rate + (1.0 - rate) * correlation;
        first * again.powi(i32::try_from(rounds).unwrap_or(i32::MAX))
    }

    /// The smallest redundancy with which at most the wanted share is lost; of several, the longest block.
    #[must_use]
    pub fn plan(&self) -> Plan {
        let rounds = self.rounds(0);
        let none = Plan { rounds, data: BLOCK_MAX, redundancy: 0 };
        if self.lost_in_all(self.losses.rate(), rounds) <= self.residual_loss {
            return none;
        }
        // A block and its coded packets are sent within the time that one way leaves of the deadline.
        let room = self.deadline_ns.saturating_sub(self.one_way_ns) / self.pace_ns.max(1);
        let room = usize::try_from(room).unwrap_or(usize::MAX).min(2 * BLOCK_MAX);
        let mut best: Option<Plan> = None;
        for data in 1..=BLOCK_MAX.min(room.saturating_sub(1)) {
            let most = BLOCK_MAX.min(room - data);
            let lost = Lost::of(&self.losses, data, most);
            for redundancy in 1..=most {
                // The first symbol of a block waits longest: what is not restored has less time to come again.
                let spent_ns = (data + redundancy) as u64 * self.pace_ns;
                let after = self.lost_in_all(lost.beyond(redundancy), self.rounds(spent_ns));
                if after <= self.residual_loss {
                    let is_less = |than: Plan| redundancy * than.data <= than.redundancy * data;
                    if best.is_none_or(is_less) {
                        best = Some(Plan { rounds, data, redundancy });
                    }
                    break;
                }
            }
        }
        // Where nothing suffices, as much as there is room for.
        let most = || match room {
            0 | 1 => none,
            _ => Plan { rounds, data: (room / 2).clamp(1, BLOCK_MAX), redundancy: (room / 2).clamp(1, BLOCK_MAX) },
        };
        best.unwrap_or_else(most)
    }
}

/// How many packets of a block are lost, by the model of the path.
struct Lost {
    data: usize,
    /// The expected share of symbols lost for good with `redundancy` coded packets, from 1 on.
    beyond: Vec<f64>,
}

impl Lost {
    /// By the number of losses among the first `n` packets and whether the last one was lost: a sum over all ways in
    /// which a path may change.
    fn of(losses: &Gilbert, data: usize, most: usize) -> Self {
        let all = data + most;
        let rate = losses.rate();
        // [lost][whether the path is bad]
        let mut now = vec![[0.0_f64; 2]; all + 1];
        (now[0][0], now[1][1]) = (1.0 - rate, rate);
        let mut beyond = Vec::with_capacity(most);
        for packets in 1..=all {
            if packets > data {
                let redundancy = packets - data;
                // If more are lost than are coded, symbols are lost as often as coded packets are.
                let share = |lost: usize| lost as f64 / packets as f64;
                let sum: f64 = (redundancy + 1..=packets).map(|lost| share(lost) * (now[lost][0] + now[lost][1])).sum();
                beyond.push(sum);
            }
            if packets == all {
                break;
            }
            let mut next = vec![[0.0; 2]; all + 1];
            for lost in 0..=packets {
                let [good, bad] = now[lost];
                next[lost][0] += good * (1.0 - losses.to_bad) + bad * losses.to_good;
                next[lost + 1][1] += good * losses.to_bad + bad * (1.0 - losses.to_good);
            }
            now = next;
        }
        Self { data, beyond }
    }

    fn beyond(&self, redundancy: usize) -> f64 {
        debug_assert!(redundancy > 0 && self.data > 0);
        self.beyond[redundancy - 1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::{RngExt, SeedableRng};

    const MS: u64 = 1_000_000;

    fn path(losses: Gilbert, round_trip_ms: u64, deadline_ms: u64, pace_us: u64) -> Path {
        Path {
            losses,
            round_trip_ns: round_trip_ms * MS,
            one_way_ns: round_trip_ms * MS / 2,
            pace_ns: pace_us * 1000,
            deadline_ns: deadline_ms * MS,
            residual_loss: 0.001,
        }
    }

    #[test]
    fn deadline_with_room_for_a_round_trip_needs_no_redundancy() {
        let plan = path(Gilbert::of(0.02, 1.0), 10, 60, 1000).plan();
        assert_eq!((plan.rounds, plan.redundancy), (4, 0));
    }

    #[test]
    fn deadline_without_room_gets_redundancy_for_the_loss_that_was_asked_for() {
        let plan = path(Gilbert::of(0.02, 1.0), 50, 60, 1000).plan();
        assert_eq!(plan.rounds, 0);
        assert!(plan.redundancy > 0 && plan.data + plan.redundancy <= 35, "{plan:?}");
        let bursts = path(Gilbert::of(0.02, 4.0), 50, 60, 1000).plan();
        let share = |plan: Plan| plan.redundancy as f64 / plan.data as f64;
        assert!(share(bursts) > share(plan), "{bursts:?} {plan:?}");
    }

    proptest! {
        /// Sent over a path of the model, at most the wanted share is lost.
        #[test]
        fn planned_redundancy_reaches_the_loss_that_was_asked_for(
            rate in 0.01_f64..0.1, burst in 1.0_f64..4.0, pace_us in 200_u64..3000, seed: u64,
        ) {
            let losses = Gilbert::of(rate, burst);
            let path = Path { residual_loss: 0.01, ..path(losses, 50, 60, pace_us) };
            let plan = path.plan();
            let room = 35_000 / usize::try_from(pace_us).unwrap();
            prop_assert!(plan.redundancy == 0 || plan.data + plan.redundancy <= room);
            let mut random = rand::rngs::SmallRng::seed_from_u64(seed);
            let (mut lost_for_good, blocks, mut is_bad) = (0, 30_000, false);
            for _ in 0..blocks {
                let mut fates = [0; 2];
                for at in 0..plan.data + plan.redundancy {
                    let leaves = if is_bad { losses.to_good } else { losses.to_bad };
                    is_bad ^= random.random_bool(leaves);
                    fates[usize::from(at >= plan.data)] += usize::from(is_bad);
                }
                lost_for_good += if fates[0] + fates[1] > plan.redundancy { fates[0] } else { 0 };
            }
            let share = f64::from(u32::try_from(lost_for_good).unwrap()) / (f64::from(blocks) * plan.data as f64);
            let is_all = plan.data == room / 2;
            prop_assert!(share <= 0.013 || is_all, "{share} {plan:?}");
        }
    }
}
