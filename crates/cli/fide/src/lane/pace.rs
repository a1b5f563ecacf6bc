// SPDX-License-Identifier: Apache-2.0
//! How fast lines may be sent as messages of a lane.

use std::time::Duration;

use super::nanos;

/// A period is extended by a `MARGIN`th part of it. The agent's packets leave a little more than a period
/// apart; a program that is exactly on time would get ahead of them, and in the end exceed its contract.
const MARGIN: u64 = 100;

/// A pace that keeps to a lane's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    messages_max: u32,
    period_ns: u64,
    /// When the present period began.
    begun_ns: Option<u64>,
    /// Messages that the present period still has room for.
    left: u32,
}

impl Pace {
    pub(super) fn new(messages_max: u32, period: Duration) -> Self {
        Self { messages_max, period_ns: nanos(period), begun_ns: None, left: 0 }
    }

    pub(super) fn change(&mut self, period: Duration) {
        self.period_ns = nanos(period);
    }

    /// How long the next message has to wait.
    pub(super) fn wait_ns(&self, now: u64) -> u64 {
        if self.left > 0 { 0 } else { self.next_ns().saturating_sub(now) }
    }

    /// A message was sent, as [`Pace::wait_ns`] allowed.
    pub(super) fn sent(&mut self, now: u64) {
        // Room that a period leaves unused is not saved up.
        if now >= self.next_ns() {
            self.begun_ns = Some(now);
            self.left = self.messages_max;
        }
        self.left = self.left.saturating_sub(1);
    }

    /// When another period may begin.
    fn next_ns(&self) -> u64 {
        let after = |begun: u64| begun.saturating_add(self.period_ns).saturating_add(self.period_ns / MARGIN);
        self.begun_ns.map_or(0, after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_messages_a_period_and_never_more() {
        let mut pace = Pace::new(3, Duration::from_micros(100));
        let (mut now, mut sent) = (5, Vec::new());
        for _ in 0..7 {
            now += pace.wait_ns(now);
            pace.sent(now);
            sent.push(now);
        }
        let period = 101_000;
        assert_eq!(sent, [5, 5, 5, 5 + period, 5 + period, 5 + period, 5 + 2 * period]);
        now += 10 * period;
        sent.clear();
        for _ in 0..4 {
            now += pace.wait_ns(now);
            pace.sent(now);
            sent.push(now);
        }
        let again = sent[0];
        assert_eq!(sent, [again, again, again, again + period], "what that period had left is not saved up");
    }

    #[test]
    fn other_terms_hold_from_the_present_period_on() {
        let mut pace = Pace::new(1, Duration::from_millis(1));
        assert_eq!(pace.wait_ns(0), 0);
        pace.sent(7);
        assert_eq!(pace.wait_ns(7), 1_010_000);
        pace.change(Duration::from_millis(2));
        assert_eq!(pace.wait_ns(7), 2_020_000);
        assert_eq!(pace.wait_ns(5_000_000), 0);
    }
}
