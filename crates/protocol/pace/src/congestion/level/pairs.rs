// SPDX-License-Identifier: Apache-2.0
//! The rate of the bottleneck's link, from pairs of packets that leave at once: the link serves one after the other,
//! whatever other flows do.

use std::collections::VecDeque;

use super::{super::FEEDBACK_MOST_NS, as_f64};

/// Rates of pairs that are kept; the middle one counts.
pub(super) const KEPT: usize = 5;
/// So many pairs at least have come at once, before that says anything.
const TOGETHER_LEAST: usize = 2;
/// FEEDBACK does not wait for as long.
const FEEDBACK_MOST_US: f64 = 1.5 * FEEDBACK_MOST_NS as f64 / 1e3;
/// Pairs under way at a time that are measured.
const UNDER_WAY: usize = 8;
/// Two packets are a pair if they leave within this time.
const AT_ONCE_NS: u64 = 100_000;
/// If they come no farther apart than they have left, but for a quarter of that, the link has not moved them apart: it is faster
/// than they say.
const STRETCHED: u64 = 4;
const FASTER: f64 = f64::INFINITY;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Packets that leave before the next pair.
    Waits(u64),
    /// The first packet has left.
    Open { left_ns: u64 },
    /// Both have left; the packet after them leaves later, as the second one was early.
    Repays,
}

/// A pair under way.
#[derive(Debug, Clone, Copy)]
struct Expected {
    /// Bytes delivered once the second packet has come.
    delivered: u64,
    /// Bytes of that packet.
    bytes: u64,
    /// It left so much later than the first one.
    apart_us: u64,
}

/// Sends pairs and measures them.
#[derive(Debug)]
pub(super) struct Pairs {
    state: State,
    expected: VecDeque<Expected>,
    /// Pairs that were sent since somebody asked.
    sent: u64,
    delivered: u64,
    came_us: u64,
    rates: [f64; KEPT],
    count: usize,
    /// Pairs that came at once: the path delivers in bursts, or is faster than clocks tell.
    together: usize,
}

impl Pairs {
    /// The first two packets are a pair.
    pub(super) fn new() -> Self {
        Self {
            state: State::Waits(0),
            expected: VecDeque::with_capacity(UNDER_WAY),
            sent: 0,
            delivered: 0,
            came_us: 0,
            rates: [0.0; KEPT],
            count: 0,
            together: 0,
        }
    }

    /// A packet has left. `apart`: packets between two pairs; none for no pairs.
    pub(super) fn sent(&mut self, now_ns: u64, bytes: u64, in_flight_bytes: u64, apart: Option<u64>) {
        self.state = match self.state {
            State::Waits(0) if apart.is_some() => State::Open { left_ns: now_ns },
            State::Waits(left) => State::Waits(left.saturating_sub(1)),
            State::Open { left_ns } if now_ns.saturating_sub(left_ns) <= AT_ONCE_NS => {
                self.sent += 1;
                // Of more pairs the newest ones are not measured.
                if self.expected.len() < UNDER_WAY {
                    let (delivered, apart_us) =
                        (self.delivered + in_flight_bytes, now_ns.saturating_sub(left_ns) / 1000);
                    self.expected.push_back(Expected { delivered, bytes, apart_us });
                }
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
        let mut newest = None;
        while let Some(pair) = self.expected.pop_front_if(|pair| delivered >= pair.delivered) {
            newest = Some(pair);
        }
        let Some(Expected { delivered: at, bytes, apart_us }) = newest else { return false };
        // Only if nothing was lost.
        if delivered != at || before + came_bytes != at {
            return false;
        }
        // One FEEDBACK for both, which does not wait for as long as the link would take.
        let is_one =
            came_bytes >= 2 * bytes && self.link().is_some_and(|link| as_f64(bytes) * 1e6 / link > FEEDBACK_MOST_US);
        if came_bytes != bytes && !is_one {
            return false;
        }
        if is_one || came_us <= last_us {
            self.together += 1;
            return true;
        }
        let came_apart_us = came_us - last_us;
        let is_faster = came_apart_us <= apart_us + apart_us / STRETCHED;
        self.rates[self.count % KEPT] = if is_faster { FASTER } else { as_f64(bytes) * 1e6 / as_f64(came_apart_us) };
        self.count += 1;
        true
    }

    /// How many pairs were sent since the last call.
    pub(super) fn take_sent(&mut self) -> u64 {
        std::mem::take(&mut self.sent)
    }

    /// Whether not all came at once.
    pub(super) fn are_measured(&self) -> bool {
        self.count > 0
    }

    /// How many have come.
    pub(super) fn count(&self) -> usize {
        self.count + self.together
    }

    /// Bytes a second. None: not known yet, or the link is faster than the pairs can tell.
    pub(super) fn link(&self) -> Option<f64> {
        self.ranked(1, 2)
    }

    /// The rate of which this share of the pairs is slower.
    fn ranked(&self, share: usize, of: usize) -> Option<f64> {
        let known = self.count.min(KEPT);
        let mut sorted = self.rates;
        sorted[..known].sort_by(f64::total_cmp);
        (known > 0).then(|| sorted[known * share / of]).filter(|rate| *rate < FASTER)
    }

    /// Most pairs came at once.
    pub(super) fn are_together(&self) -> bool {
        self.together >= (2 * self.count).max(TOGETHER_LEAST)
    }

    /// The slowest of the pairs.
    fn least(&self) -> f64 {
        self.rates[..self.count.min(KEPT)].iter().copied().fold(f64::MAX, f64::min)
    }

    /// How far the slowest is below the middle one, in shares of that, twice: from 0, if they agree, to 1.
    pub(super) fn spread(&self) -> f64 {
        self.link().map_or(1.0, |link| (2.0 * (1.0 - self.least() / link)).clamp(0.0, 1.0))
    }

    /// The link's rate, as far as the pairs agree on it; the slowest of them if they do not. None: as many came at once.
    pub(super) fn sure_link(&self) -> Option<f64> {
        if self.are_together() {
            return None;
        }
        let (link, least) = (self.link()?, self.least());
        Some(least + (link - least) * (1.0 - self.spread()))
    }

    /// The same by the faster ones: others' packets between two make a link seem slow.
    pub(super) fn fast_link(&self) -> Option<f64> {
        self.ranked(3, 4)
    }

    /// The path delivers this: its link is not slower.
    pub(super) fn at_least(&mut self, rate: f64) {
        let known = self.count.min(KEPT);
        self.rates[..known].iter_mut().for_each(|known| *known = known.max(rate));
    }
}
