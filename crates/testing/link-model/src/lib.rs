// SPDX-License-Identifier: Apache-2.0
//! What a link does to packets, in simulations and between real namespaces (`fide_testbed::emulator`): a rate, a buffer, a
//! delay, losses at random and in bursts, jitter, repetitions, marks of congestion, and a rate that changes by itself.
//!
//! Times in, times out, by seed. A crate of its own: the simulator of connections has it without the testbed.

use fide_pace::loss::Gilbert;
use rand::{RngExt, SeedableRng, rngs::SmallRng};

const MS: u64 = 1_000_000;
/// Packets of which it is noted when they entered; further ones are not.
const ENTERED_MAX: usize = 1 << 20;

/// A rate that changes by itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Varies {
    /// A new rate is drawn so often.
    pub every_ns: u64,
    /// The least share of the link's rate; the rate is evenly distributed between that and all of it.
    pub least_share: f64,
    /// The probability that the link stands still for such a time instead.
    pub pauses: f64,
}

/// What a link is like.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkSpec {
    /// 0 for one that is never the bottleneck.
    pub bits_per_s: u64,
    pub delay_ns: u64,
    /// Packets that find more in the buffer are dropped.
    pub buffer_bytes: u64,
    pub losses: Gilbert,
    /// A packet takes up to so much longer.
    pub jitter_ns: u64,
    /// Packets come in bursts so far apart, as wireless networks send several as one; 0 for none.
    pub bursts_ns: u64,
    /// Whether a packet may overtake others by its jitter.
    pub reorders: bool,
    /// The share of packets that come twice.
    pub repeats: f64,
    /// Larger packets are dropped.
    pub mtu: usize,
    /// Packets that find so much in the buffer are marked (ECN).
    pub marks_from_bytes: u64,
    /// The share of packets that are marked whatever is in the buffer.
    pub marks: f64,
    pub varies: Option<Varies>,
}

impl LinkSpec {
    /// One with nothing but a delay.
    #[must_use]
    pub const fn of(delay_ns: u64) -> Self {
        Self {
            bits_per_s: 0,
            delay_ns,
            buffer_bytes: u64::MAX,
            losses: Gilbert { to_bad: 0.0, to_good: 1.0 },
            jitter_ns: 0,
            bursts_ns: 0,
            reorders: true,
            repeats: 0.0,
            mtu: 1500,
            marks_from_bytes: u64::MAX,
            marks: 0.0,
            varies: None,
        }
    }

    /// With a bottleneck.
    #[must_use]
    pub const fn with_rate(self, bits_per_s: u64, buffer_bytes: u64) -> Self {
        Self { bits_per_s, buffer_bytes, ..self }
    }

    /// Like the path through the Internet to a home of X-PACE §V-B2: 10 Mbit/s and 15 ms as in its Table I, the queue of 25 ms
    /// that CUBIC had there, jitter below the 1.9 ms that X-PACE had, and one packet in a thousand lost.
    #[must_use]
    pub fn internet() -> Self {
        Self {
            losses: Gilbert::of(0.001, 1.5),
            jitter_ns: MS,
            reorders: false,
            ..Self::of(15 * MS).with_rate(10_000_000, 32_000)
        }
    }

    /// Like a wireless network: 30 Mbit/s at its best, 2 ms, a rate that follows the air, others who have it for a few
    /// milliseconds now and then, and losses that come together.
    #[must_use]
    pub fn wlan() -> Self {
        let varies = Varies { every_ns: 5 * MS, least_share: 0.3, pauses: 0.1 };
        Self {
            losses: Gilbert::of(0.005, 3.0),
            jitter_ns: 2 * MS,
            reorders: false,
            varies: Some(varies),
            ..Self::of(2 * MS).with_rate(30_000_000, 200_000)
        }
    }
}

/// One direction of a path.
#[derive(Debug)]
pub struct Link {
    pub spec: LinkSpec,
    random: SmallRng,
    /// When what is in the buffer has left.
    free_ns: u64,
    /// The share of the rate that there is until a time.
    share: f64,
    share_until_ns: u64,
    is_bad: bool,
    /// When the last packet came.
    last_ns: u64,
    /// Packets and bytes that entered.
    pub packets: u64,
    pub bytes: u64,
    /// Packets that were lost, or found no room.
    pub dropped: u64,
    /// The longest time in the buffer since somebody looked.
    pub longest_queue_ns: u64,
    /// The most bytes that a packet found before it since somebody looked, at the rate of that time.
    pub longest_queue_bytes: u64,
    /// When each packet entered, and its bytes, if somebody has asked for it: the first ones.
    pub entered: Option<Vec<(u64, usize)>>,
}

/// What becomes of a packet: when it comes, and whether it was marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    pub at_ns: u64,
    pub is_marked: bool,
}

impl Link {
    #[must_use]
    pub fn new(spec: LinkSpec, seed: u64) -> Self {
        Self {
            spec,
            random: SmallRng::seed_from_u64(seed),
            free_ns: 0,
            share: 1.0,
            share_until_ns: 0,
            is_bad: false,
            last_ns: 0,
            packets: 0,
            bytes: 0,
            dropped: 0,
            longest_queue_ns: 0,
            longest_queue_bytes: 0,
            entered: None,
        }
    }

    /// A packet of so many bytes enters; it comes once, twice or never.
    pub fn enter(&mut self, now_ns: u64, bytes: usize) -> impl Iterator<Item = Arrival> + use<> {
        let LinkSpec { bits_per_s, delay_ns, buffer_bytes, losses, repeats, mtu, marks_from_bytes, .. } = self.spec;
        self.packets += 1;
        self.bytes += bytes as u64;
        if let Some(entered) = self.entered.as_mut().filter(|entered| entered.len() < ENTERED_MAX) {
            entered.push((now_ns, bytes));
        }
        let leaves = if self.is_bad { losses.to_good } else { losses.to_bad };
        self.is_bad ^= self.random.random_bool(leaves.clamp(0.0, 1.0));
        let (mut is_marked, mut left_ns) = (false, now_ns);
        let mut has_room = true;
        if bits_per_s > 0 {
            let queue_ns = self.free_ns.saturating_sub(now_ns);
            let queued = u128::from(queue_ns) * u128::from(bits_per_s) / 8_000_000_000;
            has_room = queued + bytes as u128 <= u128::from(buffer_bytes);
            is_marked = queued > u128::from(marks_from_bytes);
            if has_room {
                self.longest_queue_ns = self.longest_queue_ns.max(queue_ns);
                let queued = u64::try_from(queued).unwrap_or(u64::MAX);
                self.longest_queue_bytes = self.longest_queue_bytes.max(queued);
                self.free_ns = self.serve(self.free_ns.max(now_ns), bytes);
                left_ns = self.free_ns;
            }
        }
        // Links that mark nothing draw nothing, so that they stay as they were.
        is_marked |= self.spec.marks > 0.0 && self.random.random_bool(self.spec.marks);
        let comes = has_room && !self.is_bad && bytes <= mtu;
        self.dropped += u64::from(!comes);
        if self.spec.bursts_ns > 0 {
            left_ns = left_ns.div_ceil(self.spec.bursts_ns) * self.spec.bursts_ns;
        }
        let is_twice = comes && self.random.random_bool(repeats);
        let mut arrivals = [None; 2];
        for (place, _) in arrivals.iter_mut().zip(0..u32::from(comes) + u32::from(is_twice)) {
            *place = Some(Arrival { at_ns: self.arrives(left_ns + delay_ns), is_marked });
        }
        arrivals.into_iter().flatten()
    }

    /// When so many bytes have left that begin at a time.
    fn serve(&mut self, from_ns: u64, bytes: usize) -> u64 {
        let Some(varies) = self.spec.varies else {
            return from_ns + bytes as u64 * 8_000_000_000 / self.spec.bits_per_s;
        };
        #[allow(clippy::cast_precision_loss, reason = "a packet, and a rate")]
        let (mut at_ns, mut left, rate) = (from_ns, bytes as f64 * 8e9, self.spec.bits_per_s as f64);
        loop {
            while self.share_until_ns <= at_ns {
                let stands = self.random.random_bool(varies.pauses);
                self.share = if stands { 0.0 } else { self.random.random_range(varies.least_share..=1.0) };
                self.share_until_ns = self.share_until_ns.max(at_ns - at_ns % varies.every_ns) + varies.every_ns;
            }
            #[allow(clippy::cast_precision_loss, reason = "less than one interval")]
            let room = (self.share_until_ns - at_ns) as f64 * rate * self.share;
            if room >= left {
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "less than one interval")]
                return at_ns + (left / (rate * self.share)) as u64;
            }
            left -= room;
            at_ns = self.share_until_ns;
        }
    }

    fn arrives(&mut self, at_ns: u64) -> u64 {
        let LinkSpec { jitter_ns, reorders, .. } = self.spec;
        let at_ns = at_ns + if jitter_ns > 0 { self.random.random_range(0..jitter_ns) } else { 0 };
        let at_ns = if reorders { at_ns } else { at_ns.max(self.last_ns) };
        self.last_ns = self.last_ns.max(at_ns);
        at_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_leave_one_after_the_other_and_those_without_room_are_dropped() {
        let mut link = Link::new(LinkSpec::of(10 * MS).with_rate(8_000_000, 3000), 1);
        let mut times = Vec::new();
        for _ in 0..5 {
            times.extend(link.enter(0, 1000).map(|arrival| arrival.at_ns));
        }
        assert_eq!((times, link.dropped), (vec![11 * MS, 12 * MS, 13 * MS], 2));
        assert_eq!((link.longest_queue_ns, link.longest_queue_bytes), (2 * MS, 2000));
        assert_eq!((link.packets, link.bytes), (5, 5000));
    }

    #[test]
    fn entries_are_noted_if_they_are_asked_for() {
        let mut link = Link::new(LinkSpec::of(0).with_rate(8_000_000, 1000), 1);
        let _ = link.enter(1, 900);
        link.entered = Some(Vec::new());
        let _ = (link.enter(2, 900).count(), link.enter(2, 50).count());
        assert_eq!(link.entered.take(), Some(vec![(2, 900), (2, 50)]), "one of them found no room");
    }

    #[test]
    fn losses_repetitions_and_marks_are_as_often_as_was_asked_for() {
        let spec = LinkSpec { losses: Gilbert::of(0.1, 3.0), repeats: 0.2, ..LinkSpec::of(0) };
        let mut link = Link::new(spec, 1);
        let came: usize = (0..100_000).map(|at| link.enter(at, 100).count()).sum();
        let lost = link.dropped as f64 / 100_000.0;
        assert!((0.09..0.11).contains(&lost), "{lost}");
        let twice = came as f64 / (100_000.0 * (1.0 - lost)) - 1.0;
        assert!((0.19..0.21).contains(&twice), "{twice}");
        let mut link = Link::new(LinkSpec { marks_from_bytes: 1500, ..LinkSpec::of(0).with_rate(8_000_000, 9000) }, 1);
        let marked: Vec<bool> = (0..4).flat_map(|_| link.enter(0, 1000).map(|arrival| arrival.is_marked)).collect();
        assert_eq!(marked, [false, false, true, true]);
        let mut link = Link::new(LinkSpec { marks: 0.3, ..LinkSpec::of(0) }, 1);
        let marked = (0..100_000).filter(|at| link.enter(*at, 100).any(|arrival| arrival.is_marked)).count();
        assert!((29_000..31_000).contains(&marked), "{marked}");
    }

    /// All that a link can do in ten seconds goes through, in order.
    #[test]
    fn rates_that_change_have_the_mean_that_was_asked_for() {
        for (spec, share) in [(LinkSpec::internet(), 1.0), (LinkSpec::wlan(), 0.9 * 0.65)] {
            let mut link = Link::new(LinkSpec { buffer_bytes: u64::MAX, ..spec }, 1);
            let (mut bytes, mut last_ns) = (0, 0);
            loop {
                for arrival in link.enter(0, 1000) {
                    assert!(arrival.at_ns >= last_ns);
                    last_ns = arrival.at_ns;
                }
                if last_ns > 10_000 * MS {
                    break;
                }
                bytes += 1000;
            }
            let used = f64::from(bytes) * 8.0 / 10.0 / spec.bits_per_s as f64;
            assert!((share - 0.02..share + 0.02).contains(&used), "{used}");
        }
    }
}
