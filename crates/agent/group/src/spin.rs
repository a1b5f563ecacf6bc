// SPDX-License-Identifier: Apache-2.0
//! Looking for an answer that is due, before sleeping.
//!
//! A thread that sleeps is woken by an interrupt, and its core may have to leave an idle state first: on a virtual machine that is as long as all
//! that a decision takes besides. So a member that has asked looks for the answer for a moment, and lets others run between two looks. Where
//! answers take longer it finds out, and sleeps at once: ever less of its waits begin with a look.

use fide_client::now_ns;

/// The longest look, ns: about what a round trip takes on hosts that answer at once.
const LOOK_NS: u64 = 100_000;
/// Waits without a look after one in vain, at most; from 1 on, twice as many each time.
const SKIPPED_MAX: u32 = 4;

/// Whether looking is worth it.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    /// Waits without a look after the next one in vain.
    skips: u32,
    /// Waits left of these.
    left: u32,
}

/// What a look has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Looked {
    pub(crate) found: usize,
    /// What is left of the wait where nothing was found.
    pub(crate) left_ns: u64,
}

impl Spin {
    /// Looks again and again until something is found, at most [`LOOK_NS`] or as long as the wait may be. What it has come to.
    ///
    /// # Errors
    /// `look`'s.
    pub(crate) fn look<E>(
        &mut self,
        sleep_ns: u64,
        is_due: bool,
        look: impl FnMut() -> Result<usize, E>,
    ) -> Result<Looked, E> {
        self.look_by(now_ns, sleep_ns, is_due, look)
    }

    fn look_by<E>(
        &mut self,
        clock_ns: impl Fn() -> u64,
        sleep_ns: u64,
        is_due: bool,
        mut look: impl FnMut() -> Result<usize, E>,
    ) -> Result<Looked, E> {
        let nothing = Looked { found: 0, left_ns: sleep_ns };
        if sleep_ns == 0 || !is_due {
            return Ok(nothing);
        }
        if self.left > 0 {
            self.left -= 1;
            return Ok(nothing);
        }
        let begun_ns = clock_ns();
        let mut took_ns = 0;
        while took_ns < LOOK_NS.min(sleep_ns) {
            let found = look()?;
            if found > 0 {
                self.skips = 0;
                return Ok(Looked { found, ..nothing });
            }
            took_ns = clock_ns().saturating_sub(begun_ns);
        }
        self.skips = (2 * self.skips).clamp(1, SKIPPED_MAX);
        self.left = self.skips;
        Ok(Looked { left_ns: sleep_ns.saturating_sub(took_ns), ..nothing })
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, convert::Infallible};

    use super::*;

    /// How often a wait looks, where something comes at the `comes`th look, each of which takes 1 us.
    fn looks(spin: &mut Spin, sleep_ns: u64, is_due: bool, comes: u64) -> u64 {
        let looks = Cell::new(0);
        let look = || {
            looks.set(looks.get() + 1);
            Ok::<_, Infallible>(usize::from(looks.get() >= comes))
        };
        let _ = spin.look_by(|| looks.get() * 1000, sleep_ns, is_due, look);
        looks.get()
    }

    #[test]
    fn nothing_is_looked_for_that_is_not_due() {
        let mut spin = Spin::default();
        assert_eq!(looks(&mut spin, u64::MAX, false, 1), 0);
        assert_eq!(looks(&mut spin, 0, true, 1), 0, "who does not wait looks anyway");
        assert_eq!(looks(&mut spin, 7000, true, 100), 7, "no longer than the wait");
    }

    #[test]
    fn what_a_look_in_vain_took_is_taken_off_the_wait() {
        let times = Cell::new(0);
        let clock_ns = || {
            times.set(times.get() + 1);
            times.get() * 1000
        };
        let vain = || Ok::<_, Infallible>(0);
        let looked = Spin::default().look_by(clock_ns, 3_000_000, true, vain);
        assert_eq!(looked, Ok(Looked { found: 0, left_ns: 3_000_000 - LOOK_NS }));
        let looked = Spin::default().look_by(clock_ns, 2500, true, vain);
        assert_eq!(looked, Ok(Looked { found: 0, left_ns: 0 }), "it may have taken longer than the wait");
    }

    #[test]
    fn looks_in_vain_become_rare_and_one_that_finds_brings_them_back() {
        let mut spin = Spin::default();
        assert_eq!(looks(&mut spin, u64::MAX, true, 30), 30);
        let vain = |spin: &mut Spin| (0..1000).filter(|_| looks(spin, u64::MAX, true, u64::MAX) > 0).count();
        assert_eq!(vain(&mut spin), 3 + (1000 - 10) / 5, "after 1, 2 and 4 waits, and then every 5th");
        while looks(&mut spin, u64::MAX, true, 1) == 0 {}
        assert_eq!(looks(&mut spin, u64::MAX, true, 40), 40);
    }
}
