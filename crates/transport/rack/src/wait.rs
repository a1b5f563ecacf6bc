// SPDX-License-Identifier: Apache-2.0
//! Waits for the other end: looks again and again for a moment, and then sleeps, so that an idle program takes no core.

use std::{
    hint,
    time::{Duration, Instant},
};

use crate::window::{Bell, Window};

/// How long it is looked at least and at most: to sleep and to be woken costs about as much as the latter.
const LOOKS: [Duration; 2] = [Duration::from_micros(1), Duration::from_micros(50)];
/// What came within this time was worth looking for. Where both ends sleep, each waits for the other one to be woken: that is less.
const WORTH: Duration = Duration::from_micros(150);
/// Looks between two of the clock.
const LOOKS_TO_CLOCK: u32 = 8;

/// How long it is worth to look before a sleep.
#[derive(Debug)]
pub struct Patience {
    looks: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { looks: LOOKS[1] }
    }
}

impl Patience {
    /// With as much as another one had left ([`Patience::looks_ns`]).
    pub(crate) fn of(looks_ns: u32) -> Self {
        Self { looks: Duration::from_nanos(looks_ns.into()).clamp(LOOKS[0], LOOKS[1]) }
    }

    pub(crate) fn looks_ns(&self) -> u32 {
        self.looks.subsec_nanos()
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
        let begun = Instant::now();
        if self.looks(&mut is_there) {
            return true;
        }
        // A time that no clock holds has no end.
        let has_come = sleep(window, bell, within.and_then(|within| begun.checked_add(within)), is_there);
        self.took(begun.elapsed());
        has_come
    }

    /// Looks for a moment whether something is there.
    pub(crate) fn looks(&self, mut is_there: impl FnMut() -> bool) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < self.looks {
            for _ in 0..LOOKS_TO_CLOCK {
                if is_there() {
                    return true;
                }
                hint::spin_loop();
            }
        }
        false
    }

    /// What was waited for came, or did not, after this time, most of it asleep.
    pub(crate) fn took(&mut self, wait: Duration) {
        self.looks = if wait < WORTH { LOOKS[1] } else { (self.looks / 2).max(LOOKS[0]) };
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

    /// One long wait makes it short, and so do waits of an idle program; it recovers with the first one that was worth it, also if
    /// that was slept through as the other end slept, too.
    #[test]
    fn patience_ends_with_long_waits_and_comes_back_with_short_ones() {
        let mut patience = Patience::default();
        for _ in 0..20 {
            patience.took(Duration::from_millis(10));
        }
        assert_eq!(patience.looks, LOOKS[0]);
        patience.took(Duration::from_micros(60));
        assert_eq!(patience.looks, LOOKS[1]);
    }
}
