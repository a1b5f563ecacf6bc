// SPDX-License-Identifier: Apache-2.0
//! How a path loses packets: the rate, and how far losses come in bursts (X-PACE §IV-A1).
//!
//! The model is Gilbert's: the path is good or bad, loses every packet while it is bad, and changes from one to the
//! other with fixed probabilities. Their two values follow from how often a loss follows a receipt, and a receipt a
//! loss. Old packets count less and less. An *outage*, in which everything is lost for long, is no part of it: no redundancy
//! helps against it, and for thousands of packets after it the path would seem to lose most of them.

/// Packets after which the older ones count half.
const HALF_AFTER: f64 = 2000.0;
/// The same of packets after a loss: where few are lost, it takes more of all to know how long bursts are.
const HALF_AFTER_LOST: f64 = 10_000.0;
/// Packets before a rate is believed; until then a path counts as losing [`Gilbert::UNKNOWN`].
const KNOWN_FROM: f64 = 50.0;
/// More packets lost in a row are an outage.
const BURST_MAX: u32 = 32;

/// Probabilities of a path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gilbert {
    /// That a loss follows a receipt.
    pub to_bad: f64,
    /// That a receipt follows a loss.
    pub to_good: f64,
}

impl Gilbert {
    /// Before anything is known: one packet in a hundred, alone.
    pub const UNKNOWN: Self = Self { to_bad: 0.01, to_good: 0.99 };

    /// A path that loses this share of its packets, in bursts of this mean length.
    #[must_use]
    pub fn of(rate: f64, burst: f64) -> Self {
        let to_good = 1.0 / burst.max(1.0);
        let rate = rate.clamp(0.0, 0.99);
        Self { to_bad: (to_good * rate / (1.0 - rate)).min(1.0), to_good }
    }

    /// The share of packets that are lost.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.to_bad / (self.to_bad + self.to_good).max(f64::MIN_POSITIVE)
    }

    /// The mean length of a burst, in packets.
    #[must_use]
    pub fn burst(&self) -> f64 {
        1.0 / self.to_good.max(f64::MIN_POSITIVE)
    }

    /// How much of what a packet met is still true for one so many packets later: 1 for the same, towards 0.
    /// Negative where losses avoid each other.
    #[must_use]
    pub fn correlation(&self, packets: i32) -> f64 {
        (1.0 - self.to_bad - self.to_good).powi(packets)
    }
}

/// Counts what became of packets, in the order in which they were sent.
#[derive(Debug, Clone, Copy)]
pub struct Losses {
    /// Of packets after a receipt: all, and the lost ones.
    after_receipt: [f64; 2],
    /// Of packets after a loss: all, and the lost ones.
    after_loss: [f64; 2],
    was_lost: bool,
    /// Losses since the last receipt: they count with the next one.
    burst: u32,
    lost: u64,
    received: u64,
}

impl Default for Losses {
    fn default() -> Self {
        Self { after_receipt: [0.0; 2], after_loss: [0.0; 2], was_lost: false, burst: 0, lost: 0, received: 0 }
    }
}

impl Losses {
    /// The next packet was received, or lost.
    pub fn note(&mut self, is_lost: bool) {
        if is_lost {
            self.lost += 1;
            self.burst = self.burst.saturating_add(1);
            return;
        }
        self.received += 1;
        let burst = std::mem::take(&mut self.burst);
        if burst <= BURST_MAX {
            (0..burst).for_each(|_| self.count(true));
        }
        self.count(false);
    }

    /// One was lost by a full buffer: no part of the model, as redundancy would fill it more.
    pub fn note_of_full(&mut self) {
        self.lost += 1;
    }

    fn count(&mut self, is_lost: bool) {
        for (counts, half) in [(&mut self.after_receipt, HALF_AFTER), (&mut self.after_loss, HALF_AFTER_LOST)] {
            let keep = 1.0 - std::f64::consts::LN_2 / half;
            counts.iter_mut().for_each(|count| *count *= keep);
        }
        let counts = if self.was_lost { &mut self.after_loss } else { &mut self.after_receipt };
        counts[0] += 1.0;
        counts[1] += f64::from(u8::from(is_lost));
        self.was_lost = is_lost;
    }

    /// Packets lost so far.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Packets received so far.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received
    }

    /// What the path is like, as far as it is known.
    #[must_use]
    pub fn model(&self) -> Gilbert {
        let [of_receipts, lost] = self.after_receipt;
        let known = (of_receipts + self.after_loss[0]) / KNOWN_FROM;
        if known <= 0.0 {
            return Gilbert::UNKNOWN;
        }
        // Few samples: each estimate leans on one packet that went as on an unknown path.
        let lean = |of: f64, all: f64, usual: f64| (of + usual) / (all + 1.0);
        let measured = Gilbert {
            to_bad: lean(lost, of_receipts, Gilbert::UNKNOWN.to_bad),
            to_good: lean(self.after_loss[0] - self.after_loss[1], self.after_loss[0], Gilbert::UNKNOWN.to_good),
        };
        let part = known.min(1.0);
        let mix = |of: f64, unknown: f64| part * of + (1.0 - part) * unknown;
        Gilbert {
            to_bad: mix(measured.to_bad, Gilbert::UNKNOWN.to_bad),
            to_good: mix(measured.to_good, Gilbert::UNKNOWN.to_good),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fixed sequence of numbers between 0 and 1.
    fn numbers(seed: u64) -> impl FnMut() -> f64 {
        let mut state = seed;
        move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            #[allow(clippy::cast_precision_loss, reason = "53 bits")]
            let number = (state >> 11) as f64;
            number / (1_u64 << 53) as f64
        }
    }

    #[test]
    fn model_of_a_path_is_found() {
        for (rate, burst) in [(0.01, 1.0), (0.05, 3.0), (0.1, 1.0), (0.1, 8.0)] {
            let path = Gilbert::of(rate, burst);
            assert!((path.rate() - rate).abs() < 1e-9 && (path.burst() - burst).abs() < 1e-9);
            let (mut losses, mut next, mut is_bad) = (Losses::default(), numbers(7), false);
            for _ in 0..20_000 {
                is_bad = if is_bad { next() >= path.to_good } else { next() < path.to_bad };
                losses.note(is_bad);
            }
            let found = losses.model();
            // About 3,000 packets count, in bursts: a wide interval.
            let deviation = 4.0 * (rate * burst / 2900.0).sqrt();
            assert!((found.rate() - rate).abs() < deviation, "{rate} {burst}: {found:?}");
            assert!((found.burst() / burst - 1.0).abs() < 0.5, "{rate} {burst}: {found:?}");
            assert_eq!(losses.lost() + losses.received(), 20_000);
        }
    }

    #[test]
    fn little_is_concluded_from_few_packets() {
        let mut losses = Losses::default();
        assert_eq!(losses.model(), Gilbert::UNKNOWN);
        losses.note(true);
        assert!(losses.model().rate() < 0.05, "{:?}", losses.model());
        (0..5000).for_each(|_| losses.note(false));
        assert!(losses.model().rate() < 0.002, "{:?}", losses.model());
    }

    #[test]
    fn outage_says_nothing_of_losses() {
        let mut losses = Losses::default();
        (0..3000).for_each(|at| losses.note(at % 100 == 0));
        let before = losses.model();
        (0..20_000).for_each(|_| losses.note(true));
        losses.note(false);
        assert!((losses.model().rate() - before.rate()).abs() < 0.001, "{before:?} {:?}", losses.model());
        assert_eq!((losses.lost(), losses.received()), (20_030, 2971));
    }

    #[test]
    fn losses_of_long_bursts_are_related_for_long() {
        assert!(Gilbert::of(0.1, 1.0 / 0.9).correlation(1).abs() < 1e-9, "independent");
        let bursty = Gilbert::of(0.05, 10.0);
        assert!(bursty.correlation(1) > 0.85 && bursty.correlation(100) < 1e-4);
    }
}
