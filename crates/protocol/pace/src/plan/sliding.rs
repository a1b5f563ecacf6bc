// SPDX-License-Identifier: Apache-2.0
//! How much is lost for good beside redundancy of a sliding window ([`crate::window`]).
//!
//! What counts is how many symbols are missing beyond the coded packets that have come: each lost symbol is one more, and
//! each coded packet that comes one less. Once it is none, all that was missing is restored. So a symbol is lost for good if it was lost,
//! and it does not become none while coded packets leave that stand for it.

use crate::loss::Gilbert;

/// Coded packets are planned in shares of a symbol's of one in so many.
pub(super) const SHARES: usize = 64;
/// More symbols that are missing are as many as this.
const MISSING_MAX: usize = 32;
/// A mean is taken of how soon after the lost symbol the first coded packet follows: in so many steps at least, and in more for a short
/// window, which may have none.
const PHASES: usize = 2;

/// By symbols that are missing, and whether the last packet was lost: its probability. Its memory is used again.
#[derive(Debug, Clone)]
struct Missing {
    odds: [[f64; 2]; MISSING_MAX + 1],
    /// More are not missing.
    most: usize,
}

impl Missing {
    const NONE: Self = Self { odds: [[0.0; 2]; MISSING_MAX + 1], most: 0 };

    fn all(&self) -> f64 {
        self.odds[..=self.most].iter().flatten().sum()
    }

    /// A symbol leaves. Only if it is lost: `is_lost`.
    fn symbol(&mut self, losses: &Gilbert, is_lost: bool) {
        let most = (self.most + 1).min(MISSING_MAX);
        for missing in (0..=self.most).rev() {
            let [good, bad] = std::mem::take(&mut self.odds[missing]);
            self.odds[(missing + 1).min(MISSING_MAX)][1] += good * losses.to_bad + bad * (1.0 - losses.to_good);
            if !is_lost {
                self.odds[missing][0] = good * (1.0 - losses.to_bad) + bad * losses.to_good;
            }
        }
        self.most = most;
    }

    /// A coded packet leaves.
    fn coded(&mut self, losses: &Gilbert) {
        for missing in 0..=self.most {
            let [good, bad] = std::mem::take(&mut self.odds[missing]);
            self.odds[missing.saturating_sub(1)][0] += good * (1.0 - losses.to_bad) + bad * losses.to_good;
            self.odds[missing][1] = good * losses.to_bad + bad * (1.0 - losses.to_good);
        }
    }
}

/// The share of symbols that is lost for good, of a window of so many, with `coded` in [`SHARES`] coded packets for each symbol.
pub(super) fn lost(losses: &Gilbert, window: usize, coded: usize) -> f64 {
    let phases = PHASES.max(SHARES / window);
    let of = |phase| lost_in_phase(losses, window, coded, (2 * phase + 1) * SHARES / (2 * phases));
    (0..phases).map(of).sum::<f64>() / phases as f64
}

/// The same; so many shares of a coded packet are due at the beginning.
fn lost_in_phase(losses: &Gilbert, window: usize, coded: usize, due: usize) -> f64 {
    let rate = losses.rate();
    let mut missing = Missing::NONE;
    missing.odds[0] = [1.0 - rate, rate];
    // So many before it are in a window with it.
    let before = window - 1;
    let coded_after = |symbol: usize| (due + (symbol + 1) * coded) / SHARES - (due + symbol * coded) / SHARES;
    for symbol in 0..before {
        missing.symbol(losses, false);
        (0..coded_after(symbol)).for_each(|_| missing.coded(losses));
    }
    for symbol in before..before + window {
        // Of all that may have become of the first one, that it was lost.
        missing.symbol(losses, symbol == before);
        for _ in 0..coded_after(symbol) {
            missing.coded(losses);
            // Restored.
            missing.odds[0] = [0.0; 2];
        }
    }
    missing.all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng, rngs::SmallRng};

    #[test]
    fn without_redundancy_as_many_are_lost_as_packets() {
        let losses = Gilbert::of(0.1, 3.0);
        assert!((lost(&losses, 20, 0) - 0.1).abs() < 1e-9);
        // A copy right behind each symbol.
        let both = 0.1 * (1.0 - losses.to_good);
        assert!((lost(&losses, 1, SHARES) - both).abs() < 1e-9);
    }

    /// The same by packets over a path of the model.
    #[test]
    fn as_many_are_lost_as_are_planned() {
        for (rate, burst, window, coded) in [
            (0.1, 1.0, 27, 16),
            (0.05, 3.0, 27, 28),
            (0.1, 3.0, 20, 40),
            (0.1, 3.0, 40, 40),
            (0.1, 1.0, 2, 27),
            (0.05, 1.0, 3, 15),
        ] {
            let losses = Gilbert::of(rate, burst);
            let (mut random, mut is_bad) = (SmallRng::seed_from_u64(7), false);
            let mut is_lost = || {
                is_bad ^= random.random_bool(if is_bad { losses.to_good } else { losses.to_bad });
                is_bad
            };
            let (mut missing, mut since, mut lost_for_good, mut due) = (0_usize, Vec::new(), 0, 0);
            let symbols = 2_000_000;
            for symbol in 0..symbols {
                if is_lost() {
                    missing += 1;
                    since.push(symbol);
                }
                due += coded;
                if due >= SHARES {
                    due -= SHARES;
                    missing -= usize::from(!is_lost() && missing > 0);
                }
                if missing == 0 {
                    lost_for_good += since.drain(..).filter(|at| symbol - at >= window).count();
                }
            }
            let (seen, planned) = (lost_for_good as f64 / f64::from(symbols as u32), lost(&losses, window, coded));
            // What has expired is missing there, too.
            assert!((0.85..1.35).contains(&(seen / planned)), "{rate} {burst} {window} {coded}: {seen} {planned}");
        }
    }
}
