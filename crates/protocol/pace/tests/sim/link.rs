// SPDX-License-Identifier: Apache-2.0
//! A link: a rate, a buffer, a delay, and what a network does to packets besides.

use fide_pace::loss::Gilbert;
use rand::{RngExt, rngs::SmallRng};

/// What a link is like.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LinkSpec {
    /// 0 for one that is never the bottleneck.
    pub(crate) bits_per_s: u64,
    pub(crate) delay_ns: u64,
    pub(crate) buffer_bytes: u64,
    pub(crate) losses: Gilbert,
    /// A packet takes up to so much longer; it may overtake others.
    pub(crate) jitter_ns: u64,
    /// The share of packets that come twice.
    pub(crate) repeats: f64,
    /// Larger packets are dropped.
    pub(crate) mtu: usize,
    /// Packets that find so much in the buffer are marked (ECN).
    pub(crate) marks_from_bytes: u64,
}

impl LinkSpec {
    /// One with nothing but a delay.
    pub(crate) const fn of(delay_ns: u64) -> Self {
        Self {
            bits_per_s: 0,
            delay_ns,
            buffer_bytes: u64::MAX,
            losses: Gilbert { to_bad: 0.0, to_good: 1.0 },
            jitter_ns: 0,
            repeats: 0.0,
            mtu: 1500,
            marks_from_bytes: u64::MAX,
        }
    }

    /// With a bottleneck.
    pub(crate) const fn with_rate(self, bits_per_s: u64, buffer_bytes: u64) -> Self {
        Self { bits_per_s, buffer_bytes, ..self }
    }
}

/// A direction of a path.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) spec: LinkSpec,
    /// When what is in the buffer has left.
    free_ns: u64,
    is_bad: bool,
    pub(crate) dropped: u64,
    /// The longest time in the buffer since somebody looked.
    pub(crate) longest_queue_ns: u64,
}

/// What becomes of a packet: when it comes, and whether it was marked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) at_ns: u64,
    pub(crate) is_marked: bool,
}

impl Link {
    pub(crate) fn new(spec: LinkSpec) -> Self {
        Self { spec, free_ns: 0, is_bad: false, dropped: 0, longest_queue_ns: 0 }
    }

    /// A packet of so many bytes enters.
    pub(crate) fn enter(&mut self, now_ns: u64, bytes: usize, random: &mut SmallRng) -> Vec<Arrival> {
        let LinkSpec { bits_per_s, delay_ns, buffer_bytes, losses, jitter_ns, repeats, mtu, marks_from_bytes } =
            self.spec;
        let leaves = if self.is_bad { losses.to_good } else { losses.to_bad };
        self.is_bad ^= random.random_bool(leaves.clamp(0.0, 1.0));
        let mut is_marked = false;
        let mut left_ns = now_ns;
        if bits_per_s > 0 {
            let queue_ns = self.free_ns.saturating_sub(now_ns);
            let queued = queue_ns as u128 * u128::from(bits_per_s) / 8_000_000_000;
            if queued + bytes as u128 > u128::from(buffer_bytes) {
                self.dropped += 1;
                return Vec::new();
            }
            is_marked = queued > u128::from(marks_from_bytes);
            self.longest_queue_ns = self.longest_queue_ns.max(queue_ns);
            self.free_ns = self.free_ns.max(now_ns) + bytes as u64 * 8_000_000_000 / bits_per_s;
            left_ns = self.free_ns;
        }
        if self.is_bad || bytes > mtu {
            self.dropped += 1;
            return Vec::new();
        }
        let count = 1 + usize::from(random.random_bool(repeats));
        let mut jitter = || if jitter_ns > 0 { random.random_range(0..jitter_ns) } else { 0 };
        (0..count).map(|_| Arrival { at_ns: left_ns + delay_ns + jitter(), is_marked }).collect()
    }
}
