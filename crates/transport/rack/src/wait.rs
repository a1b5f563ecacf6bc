// SPDX-License-Identifier: Apache-2.0
//! Waits for the other end: looks again and again for a moment, and then sleeps, so that an idle program takes no core.

use std::{
    hint,
    time::{Duration, Instant},
};

use crate::window::{Bell, Window};

/// How long it is looked at least and at most: to sleep and to be woken costs about as much as the latter.
const LOOKS: [Duration; 2] = [Duration::from_micros(1), Duration::from_micros(50)];
/// What came within this time may have been worth looking for. Where both ends sleep, each waits for the other one to be woken: that is
/// less.
const SOON: Duration = Duration::from_micros(150);
/// A look in vain makes the next one shorter by this.
const SHORTER: u32 = 4;
/// Waits of this kind between two long looks, at most: a power of 2.
const APART_MAX: u32 = 7;
/// Looks between two of the clock.
const LOOKS_TO_CLOCK: u32 = 8;

/// How long it is worth to look before a sleep. What is there soon is looked for, as long as that finds it: it does not where both ends
/// have one core, or where each turn takes longer than a look.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    looks: Duration,
    /// What came soon, and was not found, since the last long look.
    soon: u32,
    /// So many of those make the next look a long one: the power of 2.
    apart: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Self { looks: LOOKS[1], soon: 0, apart: 0 }
    }
}

impl Patience {
    /// With as much as another one had left ([`Patience::word`]); 0: a new one.
    #[must_use]
    pub fn of(word: u32) -> Self {
        if word == 0 {
            return Self::default();
        }
        let looks = Duration::from_nanos((word & 0xffff).into()).clamp(LOOKS[0], LOOKS[1]);
        Self { looks, soon: word >> 16 & 0xff, apart: (word >> 24).min(APART_MAX) }
    }

    /// To be kept.
    #[must_use]
    pub fn word(&self) -> u32 {
        self.looks.subsec_nanos() | self.soon << 16 | self.apart << 24
    }
}

impl Patience {
    /// Waits until something is there, but no longer than a time. False: it is not.
    pub fn wait(
        &mut self,
        window: &impl Window,
        bell: Bell,
        within: Option<Duration>,
        mut is_there: impl FnMut() -> bool,
    ) -> bool {
        if is_there() {
            return true;
        }
        if within == Some(Duration::ZERO) {
            return false;
        }
        let begun = Instant::now();
        if self.looks(&mut is_there) {
            return true;
        }
        // A time that no clock holds has no end.
        let has_come = sleep(window, bell, within.and_then(|within| begun.checked_add(within)), is_there);
        self.slept(begun.elapsed());
        has_come
    }

    /// Looks for a moment whether something is there. If it is not, [`Patience::slept`] is to be called after the sleep.
    pub fn looks(&mut self, mut is_there: impl FnMut() -> bool) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < self.looks {
            for _ in 0..LOOKS_TO_CLOCK {
                if is_there() {
                    *self = Self::default();
                    return true;
                }
                hint::spin_loop();
            }
        }
        false
    }

    /// A look was in vain; what was waited for came, or did not, after this time.
    pub fn slept(&mut self, wait: Duration) {
        self.looks = (self.looks / SHORTER).max(LOOKS[0]);
        if wait < SOON {
            self.soon += 1;
            if self.soon >= 1 << self.apart {
                *self = Self { looks: LOOKS[1], soon: 0, apart: (self.apart + 1).min(APART_MAX) };
            }
        }
    }
}

fn sleep(window: &impl Window, bell: Bell, until: Option<Instant>, mut is_there: impl FnMut() -> bool) -> bool {
    loop {
        window.will_sleep(bell, 1);
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let has_come = is_there();
        let is_over = left.is_some_and(|left| left.is_zero());
        if !has_come && !is_over {
            window.sleep(bell, left);
        }
        window.will_sleep(bell, 0);
        if has_come || is_there() {
            return true;
        }
        if is_over {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits of an idle program make it short; it recovers with the first one that was soon, also if that was slept through as the other
    /// end slept, too.
    #[test]
    fn patience_ends_with_long_waits_and_comes_back_with_short_ones() {
        let mut patience = Patience::default();
        for _ in 0..20 {
            patience.slept(Duration::from_millis(10));
        }
        assert_eq!(patience.looks, LOOKS[0]);
        patience.slept(Duration::from_micros(60));
        assert_eq!(patience.looks, LOOKS[1]);
        patience.slept(Duration::from_micros(60));
        assert!(patience.looks(|| true));
        assert_eq!(patience.looks, LOOKS[1]);
    }

    /// As where both ends have one core.
    #[test]
    fn looks_that_never_find_anything_become_rare() {
        let (mut patience, mut looked) = (Patience::default(), Duration::ZERO);
        for turn in 0..10_000 {
            let kept = Patience::of(patience.word());
            assert_eq!((kept.looks, kept.soon, kept.apart), (patience.looks, patience.soon, patience.apart));
            if turn >= 1000 {
                looked += patience.looks;
            }
            patience.slept(Duration::from_micros(15));
        }
        assert!(looked / 9000 < 2 * LOOKS[0], "{looked:?} in 9000 waits");
    }
}
