// SPDX-License-Identifier: Apache-2.0
//! Polling for an answer that is due, before sleeping.
//!
//! A sleeping thread is woken by an interrupt, and its core may have to leave an idle state first: on a
//! virtual machine that takes as long as the rest of a decision. So a member that awaits an answer polls for
//! a moment, and lets other threads run between two polls. If answers take longer, the member notices and
//! sleeps at once: ever fewer of its waits begin with polling.

use fide_client::now_ns;

/// The longest time to poll, ns: about a round trip between hosts that answer at once.
const POLL_NS: u64 = 100_000;
/// Most waits without polling after a poll in vain; they begin with 1 and double each time.
const SKIPPED_MAX: u32 = 4;

/// Whether polling is worth it.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    /// Waits that are to pass without polling, since polling was in vain last.
    skips: u32,
    /// The rest of these.
    left: u32,
}

/// The result of polling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Polled {
    /// How many descriptors are ready.
    pub(crate) ready: usize,
    /// What is left of the wait if none is.
    pub(crate) left_ns: u64,
}

impl Spin {
    /// Polls again and again until a descriptor is ready: at most for [`POLL_NS`], and no longer than the
    /// wait may take.
    ///
    /// # Errors
    /// Those of `poll`.
    pub(crate) fn poll<E>(
        &mut self,
        sleep_ns: u64,
        is_due: bool,
        poll: impl FnMut() -> Result<usize, E>,
    ) -> Result<Polled, E> {
        self.poll_by(now_ns, sleep_ns, is_due, poll)
    }

    fn poll_by<E>(
        &mut self,
        clock_ns: impl Fn() -> u64,
        sleep_ns: u64,
        is_due: bool,
        mut poll: impl FnMut() -> Result<usize, E>,
    ) -> Result<Polled, E> {
        let nothing = Polled { ready: 0, left_ns: sleep_ns };
        if sleep_ns == 0 || !is_due {
            return Ok(nothing);
        }
        if self.left > 0 {
            self.left -= 1;
            return Ok(nothing);
        }
        let begun_ns = clock_ns();
        let mut took_ns = 0;
        while took_ns < POLL_NS.min(sleep_ns) {
            let ready = poll()?;
            if ready > 0 {
                self.skips = 0;
                return Ok(Polled { ready, ..nothing });
            }
            took_ns = clock_ns().saturating_sub(begun_ns);
        }
        self.skips = (2 * self.skips).clamp(1, SKIPPED_MAX);
        self.left = self.skips;
        Ok(Polled { left_ns: sleep_ns.saturating_sub(took_ns), ..nothing })
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, convert::Infallible};

    use super::*;

    /// How often a wait polls, if a descriptor is ready at the `comes`th poll, and each poll takes 1 us.
    fn polls(spin: &mut Spin, sleep_ns: u64, is_due: bool, comes: u64) -> u64 {
        let polls = Cell::new(0);
        let poll = || {
            polls.set(polls.get() + 1);
            Ok::<_, Infallible>(usize::from(polls.get() >= comes))
        };
        let _ = spin.poll_by(|| polls.get() * 1000, sleep_ns, is_due, poll);
        polls.get()
    }

    #[test]
    fn no_polling_without_a_due_answer() {
        let mut spin = Spin::default();
        assert_eq!(polls(&mut spin, u64::MAX, false, 1), 0);
        assert_eq!(polls(&mut spin, 0, true, 1), 0, "a member that does not wait polls anyway");
        assert_eq!(polls(&mut spin, 7000, true, 100), 7, "no longer than the wait");
    }

    #[test]
    fn polling_time_is_taken_off_the_wait() {
        let times = Cell::new(0);
        let clock_ns = || {
            times.set(times.get() + 1);
            times.get() * 1000
        };
        let vain = || Ok::<_, Infallible>(0);
        let polled = Spin::default().poll_by(clock_ns, 3_000_000, true, vain);
        assert_eq!(polled, Ok(Polled { ready: 0, left_ns: 3_000_000 - POLL_NS }));
        let polled = Spin::default().poll_by(clock_ns, 2500, true, vain);
        assert_eq!(polled, Ok(Polled { ready: 0, left_ns: 0 }), "it may have taken longer than the wait");
    }

    #[test]
    fn polling_in_vain_becomes_rare_until_it_succeeds() {
        let mut spin = Spin::default();
        assert_eq!(polls(&mut spin, u64::MAX, true, 30), 30);
        let vain = |spin: &mut Spin| (0..1000).filter(|_| polls(spin, u64::MAX, true, u64::MAX) > 0).count();
        assert_eq!(vain(&mut spin), 3 + (1000 - 10) / 5, "after 1, 2 and 4 waits, and then every 5th");
        while polls(&mut spin, u64::MAX, true, 1) == 0 {}
        assert_eq!(polls(&mut spin, u64::MAX, true, 40), 40);
    }
}
