// SPDX-License-Identifier: Apache-2.0
//! The least redundancy that any transport needs for a loss, a deadline and a residual loss.
//!
//! **Whatever the deadline.** A link that loses a share p of its packets is an erasure channel of capacity 1 - p: of n packets
//! no more than (1 - p) n messages of a packet's size are known at the other end, by whatever code, and feedback adds nothing
//! to that. If a share r of the messages may be lost, 1 - r of each message has to come:
//!
//! > (1 - p) n >= 1 - r, so the redundancy n - 1 >= (1 - r) / (1 - p) - 1; none if p <= r.
//!
//! **Who reaches it.** One who sends again exactly what was lost, as often as is needed. One repetition of a share f of the lost
//! ones leaves p (1 - f) + f p^2, which is r for f = (p - r) / (p (1 - p)), and costs p f: the bound above. That goes if f <= 1,
//! so r >= p^2, and in general with k repetitions in time if r >= p^(k + 1).
//!
//! **With one repetition in time, and r < p^2.** Of what is repeated last nothing is heard before the deadline, so more has to be
//! repeated than was lost. Of N messages L are lost, which the sender knows; it sends x packets, each of use for any of the lost
//! (an ideal code), of which B come. What is not restored is at least (L - B)+. So the least is
//!
//! > the minimum of E\[x(L)\] / N over all choices of x(L), among them random ones, with E\[(L - B)+\] / N <= r.
//!
//! It is found by the multiplier of the constraint: for each L the x that makes x + m E\[(L - B)+\] least; between the two m
//! where r is passed, the two choices are mixed. Packets that are sent ahead, before it is known what was lost, are never better
//! here than ones that are sent when it is.
//!
//! With more repetitions in time the bound whatever the deadline is taken.
//!
//! **With no repetition in time.** What was lost is heard of too late, so the sender has to choose beforehand. It protects N
//! messages together, a *block*, by x more packets: N + x packets leave, of which L are lost. Those that come are N + x - L, and no
//! code makes more messages known from them than that, so of the N messages at least (L - x)+ are not. An ideal code reaches this (it
//! sends the messages as they are, and each coded packet stands for any lost one). So the least is
//!
//! > the minimum of E\[x\] / N over all x, among them random ones, with E\[(L(N + x) - x)+\] / N <= r,
//!
//! which is found in the same way. L is that of N + x packets in a row, with their bursts. The block is as long as the deadline allows: a
//! message is restored once the last coded packet has come, and the first one of a block waits longest, so that all of a block
//! leaves within the time that the deadline leaves to the way. Longer blocks are never worse, as (a + b)+ <= a+ + b+, but the capacity
//! of the link is reached only by endless ones. Here the bound is in favour of an ideal sender twice: its coded packets take no
//! time on the link, so that N is all messages of that time; and the losses are known to it as they are. It is a bound for blocks,
//! each message in one: codes whose blocks overlap are not in it.
//!
//! With one repetition the bound is in favour of an ideal sender three times: N is all that a deadline's time holds, as if all of these messages were
//! protected together and their losses known at once; losses of repetitions are independent of each other, as if each burst met
//! one of them at most; and what costs nothing here, as the description of a code, is not free in a packet.

use fide_pace::loss::Gilbert;

/// Most packets of a last round, for each message: beyond that there is no use for one more.
const ROUND_MAX: usize = 3;

/// Less than that comes of rounding.
const NOTHING: f64 = 1e-9;

/// Packets more than the messages', for each message. `together`: messages of one packet that a deadline's time holds, from the
/// first sending to the last packet that comes in time. `repetitions`: those in time.
pub(crate) fn redundancy(losses: Gilbert, asked: f64, together: usize, repetitions: u32) -> f64 {
    let rate = losses.rate();
    let any = ((1.0 - asked) / (1.0 - rate) - 1.0).max(0.0);
    match repetitions {
        // No more are lost than may be.
        _ if any < NOTHING => 0.0,
        0 => any.max(Choice::ahead(losses, together).least(asked)),
        1 if asked < rate * rate => any.max(Choice::of_last_round(losses, together).least(asked)),
        _ => any,
    }
}

/// What a sender knows when it chooses how many packets to send, and what becomes of each choice.
struct Choice {
    messages: usize,
    /// For each thing that it may know, its probability.
    odds: Vec<f64>,
    /// For each of these, how many messages are not restored by so many packets, on the average.
    left: Vec<Vec<f64>>,
}

impl Choice {
    /// It knows nothing.
    fn ahead(losses: Gilbert, together: usize) -> Self {
        let all = counts(losses, together * (1 + ROUND_MAX));
        let left = all[together..].iter().enumerate().map(|(coded, lost)| {
            lost.iter().enumerate().map(|(lost, odds)| odds * lost.saturating_sub(coded) as f64).sum()
        });
        Self { messages: together, odds: vec![1.0], left: vec![left.collect()] }
    }

    /// It knows how many of the messages are lost.
    fn of_last_round(losses: Gilbert, together: usize) -> Self {
        let odds = counts(losses, together).pop().unwrap_or_default();
        let rate = losses.rate();
        let independent = Gilbert { to_bad: rate, to_good: 1.0 - rate };
        let packets = counts(independent, together * ROUND_MAX);
        let left = (0..=together)
            .map(|lost| {
                let of = |gone: &[f64]| {
                    let sent = gone.len() - 1;
                    let short = |gone: usize| lost.saturating_sub(sent - gone) as f64;
                    gone.iter().enumerate().map(|(gone, odds)| odds * short(gone)).sum()
                };
                packets.iter().map(|gone| of(gone)).collect()
            })
            .collect();
        Self { messages: together, odds, left }
    }

    /// Packets and messages lost for good, for each message, if one lost message is worth so many packets.
    fn at(&self, worth: f64) -> (f64, f64) {
        let (mut packets, mut gone) = (0.0, 0.0);
        for (odds, left) in self.odds.iter().zip(&self.left) {
            let costs = left.iter().enumerate().map(|(sent, left)| (sent as f64 + worth * left, sent as f64, *left));
            let Some((_, sent, left)) = costs.min_by(|one, other| one.0.total_cmp(&other.0)) else { continue };
            packets += odds * sent;
            gone += odds * left;
        }
        let messages = self.messages as f64;
        (packets / messages, gone / messages)
    }

    fn least(&self, asked: f64) -> f64 {
        let (mut low, mut high) = (1.0_f64, 1e9_f64);
        for _ in 0..60 {
            let middle = (low * high).sqrt();
            if self.at(middle).1 > asked {
                low = middle;
            } else {
                high = middle;
            }
        }
        let ((few, more_lost), (many, less_lost)) = (self.at(low), self.at(high));
        let part = if more_lost > less_lost { (more_lost - asked) / (more_lost - less_lost) } else { 0.0 };
        few + part.clamp(0.0, 1.0) * (many - few)
    }
}

/// For 0 up to so many packets: the probabilities that none, one, two and so on of them are lost.
fn counts(losses: Gilbert, packets: usize) -> Vec<Vec<f64>> {
    let rate = losses.rate();
    let mut all = vec![vec![1.0]];
    // [lost][whether the last one was]
    let mut now = vec![[1.0 - rate, 0.0], [0.0, rate]];
    for _ in 0..packets {
        all.push(now.iter().map(|[good, bad]| good + bad).collect());
        let mut next = vec![[0.0; 2]; now.len() + 1];
        for (lost, [good, bad]) in now.into_iter().enumerate() {
            next[lost][0] += good * (1.0 - losses.to_bad) + bad * losses.to_good;
            next[lost + 1][1] += good * losses.to_bad + bad * (1.0 - losses.to_good);
        }
        now = next;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(rate: f64) -> Gilbert {
        Gilbert { to_bad: rate, to_good: 1.0 - rate }
    }

    #[test]
    fn counts_of_losses_are_those_of_the_model() {
        let all = counts(random(0.25), 3);
        assert_eq!(all.len(), 4);
        let binomial = [27.0, 27.0, 9.0, 1.0].map(|ways| ways / 64.0);
        assert!(all[3].iter().zip(binomial).all(|(one, other)| (one - other).abs() < 1e-12), "{all:?}");
        let mean: f64 = counts(Gilbert::of(0.1, 4.0), 50)[50].iter().enumerate().map(|(n, odds)| n as f64 * odds).sum();
        assert!((mean - 5.0).abs() < 1e-9, "{mean}");
    }

    #[test]
    fn capacity_is_enough_where_one_repetition_is() {
        assert!(redundancy(random(0.01), 0.01, 45, 1).abs() < 1e-12);
        assert!((redundancy(random(0.1), 0.01, 45, 1) - 0.1).abs() < 1e-12);
        // The search for the last round finds the same.
        let last = Choice::of_last_round(random(0.03), 20).least(0.001);
        assert!((last - (0.999 / 0.97 - 1.0)).abs() < 1e-6, "{last}");
    }

    #[test]
    fn redundancy_alone_is_that_of_copies_for_one_message_and_nears_the_capacity_for_many() {
        let of = |asked, together| redundancy(random(0.1), asked, together, 0);
        // A message and x copies are lost together with 0.1^(1 + x); between two x both are taken in turn.
        for (asked, least) in [(0.1, 0.0), (0.055, 0.5), (0.01, 1.0), (0.001, 2.0)] {
            assert!((of(asked, 1) - least).abs() < 1e-6, "{asked}: {}", of(asked, 1));
        }
        assert!(redundancy(Gilbert::of(0.01, 3.0), 0.01, 30, 0) == 0.0, "as many are lost as may be");
        // Two messages and their sum: of three packets two or three are lost, which are one or two messages too many.
        let left = Choice::ahead(random(0.1), 2).left[0][1];
        assert!((left - (3.0 * 0.01 * 0.9 + 2.0 * 0.001)).abs() < 1e-12, "{left}");
        let each = [5, 30, 300].map(|together| of(0.001, together));
        let capacity = 0.999 / 0.9 - 1.0;
        assert!(
            each.is_sorted_by(|one, other| one > other) && each[2] > capacity && each[2] < 1.4 * capacity,
            "{each:?}"
        );
        // Never less than with a repetition, and more where losses come in bursts.
        let bursts = redundancy(Gilbert::of(0.1, 3.0), 0.001, 30, 0);
        assert!(each[1] > redundancy(random(0.1), 0.001, 30, 1) && bursts > each[1], "{each:?} {bursts}");
    }

    #[test]
    fn last_round_costs_more_where_one_repetition_is_too_few() {
        // A single message is repeated twice if it was lost: 0.1 * 0.1^2 are lost then.
        let alone = redundancy(random(0.1), 0.001, 1, 1);
        assert!((alone - 0.2).abs() < 1e-6, "{alone}");
        let [few, many] = [5, 45].map(|together| redundancy(random(0.1), 0.001, together, 1));
        assert!(alone > few && few > many && many > 0.999 / 0.9 - 1.0, "{few} {many}");
    }
}
