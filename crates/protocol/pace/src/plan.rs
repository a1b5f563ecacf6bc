// SPDX-License-Identifier: Apache-2.0
//! How a message is protected: sent again when it is lost, with redundancy ahead, or both (X-PACE §IV-A; M. Gorius'
//! hybrid error control, its reference 8).
//!
//! **Again.** A loss is known a round trip after the packet was sent, and a few packets later; what is sent again needs
//! one way more. So a deadline has room for some number of rounds, and a symbol is lost for good if it was lost in
//! each of them. Rounds are a round trip apart, so that a burst is mostly over.
//!
//! **In copies.** In the last round nobody can answer any more. Then a share of what is sent again leaves twice or more
//! often, just so large that the loss that was asked for is reached. In a burst nothing comes that could show a loss, and FEEDBACK is lost,
//! too: what is not heard of in the first half of the time that is left is taken for lost.
//!
//! **Ahead.** Coded packets leave between the symbols, each for the last ones, as many as have time to wait for it
//! ([`crate::window`]). So a symbol waits no longer than it takes until as many coded packets have come as symbols were lost.
//!
//! **Ahead, and again.** Of a block of symbols that is sent within a part of the deadline, with coded packets right behind it, up
//! to as many packets may be lost as are coded. What is lost beyond that is sent again, if there is a round.
//!
//! **Never more than the path takes.** What is sent besides an application's messages has to fit between them: else it is a queue,
//! which makes late what it was to save. Where nothing suffices that fits, the way is taken by which least is lost.
//!
//! Sending again costs just what was lost, which is the least that is possible (a channel that loses a share p needs
//! p/(1-p) more packets). So of all ways that reach the loss that was asked for the one with the fewest packets is taken.

mod sliding;

use crate::{
    block::BLOCK_MAX,
    congestion::FEEDBACK_LEAST_NS,
    flight::{REORDERED_MAX, SILENCE_LEAST_NS},
    loss::Gilbert,
    receiver::EARLY_US,
    window::WINDOW_MAX,
};

/// What is known of the path, and wanted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Path {
    pub losses: Gilbert,
    /// Time of a round trip, with what it varies by.
    pub round_trip_ns: u64,
    /// How long before its expiry a symbol has to leave.
    pub one_way_ns: u64,
    /// Time between two packets that the path takes.
    pub pace_ns: u64,
    /// Time between two symbols as the application makes them by itself; shorter than `pace_ns` if it is the path that holds it.
    pub symbols_ns: u64,
    /// From the time a message is handed over to its expiry.
    pub deadline_ns: u64,
    /// The share of messages that may be lost.
    pub residual_loss: f64,
}

/// How a block is protected.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    /// Times a lost symbol can be sent again.
    pub rounds: u32,
    /// Symbols of a block.
    pub data: usize,
    /// Coded packets behind it; 0 for none.
    pub redundancy: usize,
    /// The last symbols that each coded packet stands for, of which one follows as soon as it has its share of `data`; 0 for blocks.
    pub window: usize,
    /// If no symbol follows for so long, half of the coded packets of a window do.
    pub tail_ns: u64,
    /// Copies of a symbol that is sent for the last time, besides the first one: a mean.
    pub copies: f64,
    /// Between two copies.
    pub apart_ns: u64,
    /// So long before the last moment a symbol of which nothing was heard is taken for lost; 0: it is not.
    pub guess_ns: u64,
    /// Symbols that may be taken for lost, for each one that is sent.
    pub guesses: f64,
    /// What is sent with less time left than this is sent for the last time.
    pub round_ns: u64,
}

impl Plan {
    /// Nothing is known.
    pub const NONE: Self = Self {
        rounds: 0,
        data: 1,
        redundancy: 0,
        window: 0,
        tail_ns: u64::MAX,
        copies: 0.0,
        apart_ns: 0,
        guess_ns: 0,
        guesses: 0.0,
        round_ns: u64::MAX,
    };
}

/// Most rounds that are counted on: later ones add nothing that matters.
const ROUNDS_MAX: u32 = 8;
/// Symbols that may be taken for lost, over those that should be: chance has some more, but a queue that keeps all news late must not be
/// filled by what is sent again.
const GUESSED: f64 = 2.0;
/// Most copies besides the first one.
const COPIES_MAX: u32 = 3;
/// Copies are so far apart that this much of the first one's luck is left, if there is time.
const APART_CORRELATION: f64 = 0.1;
/// The share of the loss that was asked for that is planned with: the rest is for what the model does not know.
const PLANNED: f64 = 0.85;
/// Most packets besides the one of each symbol, if the path holds the application.
const MORE_MAX: f64 = 1.0;
/// The share of the path's room between symbols that is used: the rest is for FEEDBACK, and for a pace that varies.
const FITS: f64 = 0.9;

/// In a window of so many symbols and fewer the last one is protected as it leaves.
const TAIL_FROM: usize = 2;

impl Path {
    /// Between two symbols.
    fn between_ns(&self) -> u64 {
        self.symbols_ns.max(self.pace_ns).max(1)
    }

    /// Between two rounds. A loss is not known before the next packet comes, or FEEDBACK is missing.
    fn round_ns(&self) -> u64 {
        let next_ns = self.symbols_ns.min(SILENCE_LEAST_NS);
        let reordered_ns = (REORDERED_MAX * self.between_ns()).min(next_ns.max(self.round_trip_ns / 8 + 1_000_000));
        self.round_trip_ns + reordered_ns
    }

    /// The time in which a symbol that was handed over so long ago can be sent.
    fn room_ns(&self, spent_ns: u64) -> u64 {
        self.deadline_ns.saturating_sub(spent_ns).saturating_sub(self.one_way_ns)
    }

    /// Times that a symbol, first sent `spent_ns` after it was handed over, can be sent again in time.
    #[must_use]
    pub fn rounds(&self, spent_ns: u64) -> u32 {
        let rounds = self.room_ns(spent_ns) / self.round_ns().max(1);
        u32::try_from(rounds).unwrap_or(ROUNDS_MAX).min(ROUNDS_MAX)
    }

    /// Most packets besides the one of each symbol.
    fn more_max(&self) -> f64 {
        if self.symbols_ns <= self.pace_ns {
            return MORE_MAX;
        }
        (FITS * self.symbols_ns as f64 / self.pace_ns.max(1) as f64 - 1.0).clamp(0.0, MORE_MAX)
    }

    /// How long after the first symbol of a block its last coded packet leaves: nothing is between the last symbol and those.
    fn block_ns(&self, data: usize, redundancy: usize) -> u64 {
        (data as u64 - 1) * self.between_ns() + redundancy as u64 * self.pace_ns
    }

    /// The probability that a packet is lost if one before it was.
    fn lost_after(&self, packets: u64) -> f64 {
        let rate = self.losses.rate();
        // How much of the first one's bad luck is left.
        let correlation = self.losses.correlation(i32::try_from(packets).unwrap_or(i32::MAX)).max(0.0);
        rate + (1.0 - rate) * correlation
    }

    /// The probability that a loss is heard of too late for the last of these rounds, if symbols leave so late: FEEDBACK is lost as often as
    /// other packets are, and what comes after it says the same.
    fn unheard(&self, spent_ns: u64, rounds: u32) -> f64 {
        let left_ns = self.room_ns(spent_ns).saturating_sub(u64::from(rounds) * self.round_ns());
        // After a gap it leaves with each packet, or twice as often as it waits at most.
        let feedback_ns = FEEDBACK_LEAST_NS.max(self.between_ns());
        let more = i32::try_from(left_ns / feedback_ns).unwrap_or(i32::MAX);
        self.losses.rate() * (1.0 - self.losses.to_good).max(0.0).powi(more)
    }

    /// Of a share of symbols that were lost first, as late as this: what is lost in all rounds, and the packets that this costs.
    fn again(&self, first: f64, spent_ns: u64) -> (f64, f64) {
        let rounds = self.rounds(spent_ns);
        let Some(before) = rounds.checked_sub(1) else { return (first, 0.0) };
        let (last, packets) = self.before_last(first, before);
        let heard = 1.0 - self.unheard(spent_ns, rounds);
        (last * (1.0 - heard * (1.0 - self.lost_again())), packets + last * heard)
    }

    /// What is lost in so many rounds, if all is heard of, and the packets that this costs.
    fn before_last(&self, first: f64, rounds: u32) -> (f64, f64) {
        let again = self.lost_again();
        (0..rounds).fold((first, 0.0), |(lost, packets), _| (lost * again, packets + lost))
    }

    /// The probability that what is sent again is lost, too: it is another packet, also where none leaves in between.
    fn lost_again(&self) -> f64 {
        self.lost_after((self.round_trip_ns / self.between_ns()).max(1))
    }

    /// The time that so many rounds leave.
    fn left_ns(&self, rounds: u32) -> u64 {
        // The receiver gives a gap up before a symbol expires.
        self.room_ns(0).saturating_sub(u64::from(rounds) * self.round_ns() + EARLY_US * 1000)
    }

    /// Packets between two of so many copies that leave within a time.
    fn apart(&self, within_ns: u64, copies: u32) -> u64 {
        let most = (within_ns / u64::from(copies) / self.between_ns()).clamp(1, 64);
        (1..most).find(|packets| self.lost_after(*packets) < self.losses.rate() + APART_CORRELATION).unwrap_or(most)
    }

    /// The probability that a loss is not known so long after it could be at the earliest: in a burst nothing comes that could show it, and
    /// FEEDBACK is lost as often as other packets are.
    fn unknown(&self, after_ns: u64) -> f64 {
        let packets = after_ns / FEEDBACK_LEAST_NS.max(self.between_ns());
        let stays = (1.0 - self.losses.to_good).max(0.0).powi(i32::try_from(packets).unwrap_or(i32::MAX));
        (stays * (1.0 + self.losses.rate() * packets as f64)).min(1.0)
    }

    /// Symbols are sent again only, with as many copies in the last round as are needed; and what that costs. What was not heard of in the
    /// first half of the time that is left for the last round is taken for lost. Err: they do not suffice, and what is lost.
    fn by_rounds(&self, none: Plan, wanted: f64) -> Result<(f64, Plan), (f64, Plan)> {
        let rate = self.losses.rate();
        let Some(before) = none.rounds.checked_sub(1) else { return Err((rate, none)) };
        let (lost, packets) = self.again(rate, 0);
        if lost <= wanted {
            return Ok((packets, none));
        }
        let (last, packets) = self.before_last(rate, before);
        let left_ns = self.left_ns(none.rounds);
        let late = self.unknown(left_ns / 2);
        // FEEDBACK that is missing so long may be of packets that have come.
        let needless = (1.0 - rate) * rate * late;
        let packets = packets + last + needless;
        let lost_with = |copies: u32| {
            let apart = self.apart(left_ns, copies.max(1));
            let again = self.lost_after(apart);
            // Copies of what was taken for lost have half of the time.
            let in_time = (left_ns / 2 / (apart * self.between_ns())).min(copies.into());
            let of_late = again.powi(i32::try_from(in_time).unwrap_or(0));
            let lost = last * self.lost_again() * ((1.0 - late) * again.powi(copies.cast_signed()) + late * of_late);
            (lost, apart * self.between_ns())
        };
        let (mut without, _) = lost_with(0);
        let guess_ns = left_ns / 2 + EARLY_US * 1000;
        let none = Plan { guess_ns, guesses: GUESSED * (last * late + needless), ..none };
        for copies in 1..=COPIES_MAX {
            let (with, apart_ns) = lost_with(copies);
            if with <= wanted {
                let part = ((without - wanted) / (without - with)).clamp(0.0, 1.0);
                let plan = Plan { copies: f64::from(copies - 1) + part, apart_ns, ..none };
                return Ok((packets + last * plan.copies, plan));
            }
            without = without.min(with);
        }
        let (lost, apart_ns) = lost_with(COPIES_MAX);
        let copies = f64::from(COPIES_MAX);
        if packets + last * copies > self.more_max() {
            return Err((self.again(rate, 0).0, Plan { guess_ns: 0, ..none }));
        }
        Err((lost, Plan { copies, apart_ns, ..none }))
    }

    /// Redundancy of a window that slides, as little as suffices, or as much as the path takes; and what is lost for good with it.
    fn by_window(&self, none: Plan, wanted: f64, more_max: f64) -> (f64, Plan) {
        // The receiver gives a gap up before a symbol expires.
        let room_ns = self.room_ns(0).saturating_sub(EARLY_US * 1000 + self.pace_ns);
        let window = usize::try_from(room_ns / self.between_ns()).unwrap_or(WINDOW_MAX).min(WINDOW_MAX - 1) + 1;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a symbol's")]
        let most = (more_max * sliding::SHARES as f64) as usize;
        let (mut few, mut enough) = (0, most);
        while enough - few > 1 {
            let middle = usize::midpoint(few, enough);
            if sliding::lost(&self.losses, window, middle) <= wanted {
                enough = middle;
            } else {
                few = middle;
            }
        }
        let tail_ns = if window > TAIL_FROM { (window as u64 / 4).max(4) * self.between_ns() } else { u64::MAX };
        let plan = Plan { data: sliding::SHARES, redundancy: enough, window, tail_ns, ..none };
        (sliding::lost(&self.losses, window, enough), plan)
    }

    /// The way with the fewest packets by which at most the wanted share is lost; where none suffices, of those that the path takes
    /// the one by which least is lost.
    #[must_use]
    pub fn plan(&self, lost: &mut Lost) -> Plan {
        let rounds = self.rounds(0);
        let none = Plan { rounds, data: BLOCK_MAX, round_ns: self.round_ns(), ..Plan::NONE };
        let (wanted, more_max) = (PLANNED * self.residual_loss, self.more_max());
        let by_rounds = self.by_rounds(none, wanted);
        if by_rounds.is_ok_and(|(_, plan)| plan == none) {
            return none;
        }
        let mut cheapest = by_rounds.ok().filter(|(packets, _)| *packets <= more_max);
        let mut safest = by_rounds.err().unwrap_or((self.again(self.losses.rate(), 0).0, none));
        // Where there is time for more rounds than one these are better, with a block at most.
        if rounds <= 1 {
            let (after, window) = self.by_window(none, wanted, more_max);
            if after < safest.0 {
                safest = (after, window);
            }
            let cost = window.redundancy as f64 / window.data as f64;
            if after <= wanted && cheapest.is_none_or(|(least, _)| cost <= least) {
                cheapest = Some((cost, window));
            }
        }
        if rounds == 0 {
            return cheapest.map_or(safest.1, |(_, plan)| plan);
        }
        // A block and its coded packets leave within the time that one way leaves of the deadline.
        let room_ns = self.room_ns(0);
        let most = usize::try_from(room_ns / self.pace_ns.max(1)).unwrap_or(usize::MAX).min(PACKETS_MAX);
        lost.set(&self.losses, most);
        for data in 1..=BLOCK_MAX {
            for redundancy in 1..=BLOCK_MAX {
                // The first symbol of a block waits longest: what is not restored has less time to come again.
                let spent_ns = self.block_ns(data, redundancy);
                if data + redundancy > most || spent_ns > room_ns {
                    break;
                }
                let (after, packets) = self.again(lost.beyond(data, redundancy), spent_ns);
                let cost = redundancy as f64 / data as f64 + packets;
                if cost > more_max {
                    break;
                }
                let plan = Plan { data, redundancy, ..none };
                if after < safest.0 {
                    safest = (after, plan);
                }
                if after <= wanted {
                    // Of several the longest block.
                    if cheapest.is_none_or(|(least, _)| cost <= least) {
                        cheapest = Some((cost, plan));
                    }
                    break;
                }
            }
        }
        cheapest.map_or(safest.1, |(_, plan)| plan)
    }
}

/// Most packets of a block and its redundancy.
const PACKETS_MAX: usize = 2 * BLOCK_MAX;
const ROW: usize = PACKETS_MAX + 2;

/// How many of some packets are lost, by the model of the path. Its memory is used again.
#[derive(Debug)]
pub struct Lost {
    /// In rows by the number of packets, and by those lost at least: the sum of (lost) times (its probability).
    at_least: Vec<f64>,
    /// By packets lost so far, and whether the path is bad: its probability, now and a packet later.
    now: Vec<[f64; 2]>,
    next: Vec<[f64; 2]>,
}

impl Default for Lost {
    fn default() -> Self {
        Self { at_least: vec![0.0; (PACKETS_MAX + 1) * ROW], now: vec![[0.0; 2]; ROW], next: vec![[0.0; 2]; ROW] }
    }
}

impl Lost {
    /// By the number of losses among the first `n` packets and whether the last one was lost: a sum over all ways in
    /// which a path may change.
    fn set(&mut self, losses: &Gilbert, most: usize) {
        let rate = losses.rate();
        self.now.fill([0.0; 2]);
        (self.now[0][0], self.now[1][1]) = (1.0 - rate, rate);
        for packets in 1..=most.min(PACKETS_MAX) {
            let sums = &mut self.at_least[packets * ROW..][..ROW];
            sums[packets + 1] = 0.0;
            for lost in (0..=packets).rev() {
                let [good, bad] = self.now[lost];
                sums[lost] = sums[lost + 1] + lost as f64 * (good + bad);
            }
            if packets == PACKETS_MAX {
                break;
            }
            self.next.fill([0.0; 2]);
            for lost in 0..=packets {
                let [good, bad] = self.now[lost];
                self.next[lost][0] += good * (1.0 - losses.to_bad) + bad * losses.to_good;
                self.next[lost + 1][1] += good * losses.to_bad + bad * (1.0 - losses.to_good);
            }
            std::mem::swap(&mut self.now, &mut self.next);
        }
    }

    /// The share of symbols that are not restored. If more are lost than are coded, symbols are lost as often as coded
    /// packets are.
    fn beyond(&self, data: usize, redundancy: usize) -> f64 {
        let packets = data + redundancy;
        self.at_least[packets * ROW + redundancy + 1] / packets as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::{RngExt, SeedableRng, rngs::SmallRng};

    const MS: u64 = 1_000_000;

    fn path(losses: Gilbert, round_trip_ms: u64, deadline_ms: u64, pace_us: u64) -> Path {
        Path {
            losses,
            round_trip_ns: round_trip_ms * MS,
            one_way_ns: round_trip_ms * MS / 2,
            pace_ns: pace_us * 1000,
            symbols_ns: 0,
            deadline_ns: deadline_ms * MS,
            residual_loss: 0.001,
        }
    }

    #[test]
    fn deadline_with_room_for_a_round_trip_needs_no_redundancy() {
        let plan = path(Gilbert::of(0.02, 1.0), 10, 60, 1000).plan(&mut Lost::default());
        assert_eq!((plan.rounds, plan.redundancy), (4, 0));
        assert!(plan.copies == 0.0);
    }

    #[test]
    fn messages_farther_apart_than_a_round_trip_are_sent_again() {
        for pace_us in [9_000, 11_000, 200_000] {
            let plan = path(Gilbert::of(0.1, 1.0), 10, 5000, pace_us).plan(&mut Lost::default());
            assert_eq!(plan.redundancy, 0, "one each {pace_us} us: {plan:?}");
        }
    }

    /// Three in a hundred lost, one round: 9 of 10,000 are lost for good, and with twice the packets 3 of 100,000.
    #[test]
    fn last_round_has_as_many_copies_as_are_needed() {
        let plan = path(Gilbert::of(0.03, 1.0), 30, 60, 1000).plan(&mut Lost::default());
        assert_eq!((plan.rounds, plan.redundancy), (1, 0));
        let left = 0.03 * 0.03 * (1.0 - plan.copies) + 0.03 * 0.03 * 0.03 * plan.copies;
        assert!((left - PLANNED * 0.001).abs() < 1e-9, "{plan:?}");
        assert!(plan.copies < 0.1);
        let bursts = path(Gilbert::of(0.03, 4.0), 30, 60, 1000).plan(&mut Lost::default());
        assert!(bursts.apart_ns > 3 * MS, "{bursts:?}");
    }

    #[test]
    fn deadline_without_room_gets_redundancy_for_the_loss_that_was_asked_for() {
        let plan = path(Gilbert::of(0.02, 1.0), 50, 60, 1000).plan(&mut Lost::default());
        assert_eq!(plan.rounds, 0);
        assert!(plan.redundancy > 0 && (30..=35).contains(&plan.window), "{plan:?}");
        let bursts = path(Gilbert::of(0.02, 4.0), 50, 60, 1000).plan(&mut Lost::default());
        let share = |plan: Plan| plan.redundancy as f64 / plan.data as f64;
        assert!(share(bursts) > share(plan), "{bursts:?} {plan:?}");
    }

    /// Where nothing suffices, as much is coded as the path takes, and no more.
    #[test]
    fn redundancy_fits_between_the_symbols() {
        let bursts = Gilbert::of(0.1, 5.0);
        let mut path = Path { symbols_ns: 2 * MS, ..path(bursts, 50, 60, 1000) };
        let mut lost = Lost::default();
        let more = |plan: Plan| plan.redundancy as f64 / plan.data as f64;
        let plan = path.plan(&mut lost);
        assert!((0.5..=FITS * 2.0 - 1.0).contains(&more(plan)), "{plan:?}");
        // An application without pauses is held by the path, and has no more than its own packets again.
        path.symbols_ns = 0;
        let plan = path.plan(&mut lost);
        assert!((0.9..=MORE_MAX).contains(&more(plan)), "{plan:?}");
        // No room at all.
        path.symbols_ns = 1_050_000;
        let plan = path.plan(&mut lost);
        assert_eq!(plan.redundancy, 0, "{plan:?}");
    }

    /// Packets over a path of the model.
    struct Packets {
        losses: Gilbert,
        is_bad: bool,
        random: SmallRng,
    }

    impl Packets {
        fn is_lost(&mut self) -> bool {
            let leaves = if self.is_bad { self.losses.to_good } else { self.losses.to_bad };
            self.is_bad ^= self.random.random_bool(leaves);
            self.is_bad
        }

        fn is_lost_after(&mut self, packets: u64) -> bool {
            (0..packets).map(|_| self.is_lost()).last().unwrap_or(self.is_bad)
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
        /// Sent over a path of the model, at most the wanted share is lost.
        #[test]
        fn planned_redundancy_reaches_the_loss_that_was_asked_for(
            rate in 0.01_f64..0.1, burst in 1.0_f64..4.0, pace_us in 200_u64..3000, seed: u64,
        ) {
            let losses = Gilbert::of(rate, burst);
            let path = Path { residual_loss: 0.01, ..path(losses, 50, 60, pace_us) };
            let plan = path.plan(&mut Lost::default());
            let room = 35_000 / usize::try_from(pace_us).unwrap();
            prop_assert!(plan.window <= room && plan.redundancy <= plan.data);
            let mut packets = Packets { losses, is_bad: false, random: SmallRng::seed_from_u64(seed) };
            // Symbols that are missing, and coded packets that stand for them.
            let (mut missing, mut came) = (Vec::new(), 0);
            let (mut lost_for_good, mut due, symbols) = (0, 0, 300_000);
            for symbol in 0..symbols {
                if packets.is_lost() {
                    missing.push(symbol);
                }
                due += plan.redundancy;
                while due >= plan.data {
                    due -= plan.data;
                    came += usize::from(!packets.is_lost() && came < missing.len());
                }
                if came >= missing.len() {
                    lost_for_good += missing.drain(..).filter(|at| symbol - at >= plan.window).count();
                    came = 0;
                }
            }
            let share = lost_for_good as f64 / symbols as f64;
            // Or nothing suffices.
            let is_all = plan.redundancy * 10 >= plan.data * 9;
            prop_assert!(share <= 0.012 || is_all, "{share} {plan:?}");
        }

        /// The same with a round and copies.
        #[test]
        fn planned_copies_reach_the_loss_that_was_asked_for(
            rate in 0.02_f64..0.15, burst in 1.0_f64..4.0, pace_us in 200_u64..1500, seed: u64,
        ) {
            let losses = Gilbert::of(rate, burst);
            let path = Path { residual_loss: 0.01, ..path(losses, 30, 60, pace_us) };
            let plan = path.plan(&mut Lost::default());
            prop_assume!(plan.redundancy == 0);
            let mut packets = Packets { losses, is_bad: false, random: SmallRng::seed_from_u64(seed) };
            let (mut lost_for_good, symbols) = (0, 150_000);
            for _ in 0..symbols {
                if !packets.is_lost_after(40) || !packets.is_lost_after(path.round_trip_ns / path.pace_ns) {
                    continue;
                }
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                let copies = plan.copies as usize + usize::from(packets.random.random_bool(plan.copies.fract()));
                lost_for_good += u32::from((0..copies).all(|_| packets.is_lost_after(plan.apart_ns / path.pace_ns)));
            }
            let share = f64::from(lost_for_good) / f64::from(symbols);
            prop_assert!(share <= 0.0105, "{share} {plan:?}");
        }
    }
}
