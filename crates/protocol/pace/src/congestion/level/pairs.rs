// SPDX-License-Identifier: Apache-2.0
//! The rate of the bottleneck's link, from pairs of packets that leave at once: the link serves one after the other,
//! whatever other flows do.

use super::as_f64;

/// Rates of pairs that are kept; the middle one counts.
const KEPT: usize = 5;
/// Two packets are a pair if they leave within this time.
const AT_ONCE_NS: u64 = 100_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Packets that leave before the next pair.
    Waits(u64),
    /// The first packet has left.
    Open { left_ns: u64 },
    /// Both have left; the packet after them leaves later, as the second one was early.
    Repays,
}

/// Sends pairs and measures them.
#[derive(Debug)]
pub(super) struct Pairs {
    state: State,
    /// Bytes delivered once the second packet of a pair has come, and its bytes.
    expected: Option<(u64, u64)>,
    /// Pairs that were sent since somebody asked.
    sent: u64,
    delivered: u64,
    came_us: u64,
    rates: [f64; KEPT],
    count: usize,
}

impl Pairs {
    /// The first two packets are a pair.
    pub(super) fn new() -> Self {
        Self { state: State::Waits(0), expected: None, sent: 0, delivered: 0, came_us: 0, rates: [0.0; KEPT], count: 0 }
    }

    /// A packet has left. `apart`: packets between two pairs; none for no pairs.
    pub(super) fn sent(&mut self, now_ns: u64, bytes: u64, in_flight_bytes: u64, apart: Option<u64>) {
        self.state = match self.state {
            State::Waits(0) if apart.is_some() => State::Open { left_ns: now_ns },
            State::Waits(left) => State::Waits(left.saturating_sub(1)),
            State::Open { left_ns } if now_ns.saturating_sub(left_ns) <= AT_ONCE_NS => {
                self.sent += 1;
                self.expected = Some((self.delivered + in_flight_bytes, bytes));
                State::Repays
            }
            State::Open { .. } | State::Repays => State::Waits(apart.unwrap_or(0)),
        };
    }

    /// The pace until the next packet, in paces.
    pub(super) fn gap(&self) -> f64 {
        match self.state {
            State::Waits(_) => 1.0,
            State::Open { .. } => 0.0,
            State::Repays => 2.0,
        }
    }

    /// Feedback has come. Returns whether it has completed a pair.
    pub(super) fn came(&mut self, came_us: u64, came_bytes: u64, delivered: u64) -> bool {
        let last_us = std::mem::replace(&mut self.came_us, came_us);
        let before = std::mem::replace(&mut self.delivered, delivered);
        let Some((at, bytes)) = self.expected.filter(|(at, _)| delivered >= *at) else { return false };
        self.expected = None;
        // Only if each of the two has come with feedback of its own, and nothing was lost.
        if delivered != at || came_bytes != bytes || before + bytes != at || came_us <= last_us {
            return false;
        }
        self.rates[self.count % KEPT] = as_f64(bytes) * 1e6 / as_f64(came_us - last_us);
        self.count += 1;
        true
    }

    /// How many pairs were sent since the last call.
    pub(super) fn take_sent(&mut self) -> u64 {
        std::mem::take(&mut self.sent)
    }

    /// Bytes a second.
    pub(super) fn link(&self) -> Option<f64> {
        let known = self.count.min(KEPT);
        let mut sorted = self.rates;
        sorted[..known].sort_by(f64::total_cmp);
        (known > 0).then(|| sorted[known / 2])
    }

    /// The path delivers this: its link is not slower.
    pub(super) fn at_least(&mut self, rate: f64) {
        let known = self.count.min(KEPT);
        self.rates[..known].iter_mut().for_each(|known| *known = known.max(rate));
    }
}
