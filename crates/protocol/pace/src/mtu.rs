// SPDX-License-Identifier: Apache-2.0
//! The largest datagram that a path takes (DPLPMTUD, RFC 8899).
//!
//! Packets begin small enough for every path. Then packets that carry nothing but padding look for more: the
//! largest candidate first, then halfway between what came and what did not.
//!
//! A path that begins to drop large packets (a *black hole*) is suspected when several of them in a row were lost,
//! while smaller ones came that were sent between them (RFC 8899 §4.3). Packets are small from then on, and a probe of
//! the former size tells whether it is true. A buffer that is full drops large packets, too: there the probe comes, the
//! size is as before, and the next suspicion takes more losses.

/// Bytes of a UDP datagram that every path takes (RFC 9000 §14).
pub const LEAST: usize = 1200;
/// Of IPv6 over Ethernet.
pub const MOST: usize = 1452;
/// A search is over once it is this exact.
const STEP: usize = 16;
/// Probes of one size that are lost before that size counts as too large; and of one that did come before, as a full buffer loses
/// many.
const TRIES: [u32; 2] = [3, 6];
/// Large packets lost in a row, without one that came, before the path is suspected; as many after false alarms at most.
/// Half of them were sent after a smaller one that came.
const SUSPICIOUS: [u32; 2] = [6, 96];
/// How long until a larger size is tried again.
const AGAIN_NS: u64 = 600_000_000_000;
/// Time between two probes, at least.
const GAP_NS: u64 = 100_000_000;

/// Large packets that were lost, without one as large that was sent later and came.
#[derive(Debug, Clone, Copy, Default)]
struct Row {
    lost: u32,
    /// The number of the first, and bytes of the smallest.
    first: u64,
    least: usize,
    /// The number of a smaller packet that came, sent after the first of them; and how many were sent after that.
    between: Option<u64>,
    after: u32,
}

/// The search for one path.
#[derive(Debug, Clone)]
pub struct PathMtu {
    most: usize,
    /// The largest that came.
    good: usize,
    /// The smallest that did not.
    bad: usize,
    tries: u32,
    probing: Option<usize>,
    next_ns: u64,
    /// The size before the path was suspected, until a probe has told.
    suspect: Option<usize>,
    row: Row,
    /// The number and bytes of the last large packet that came.
    came: (u64, usize),
    /// Losses for the next suspicion.
    suspicious: u32,
    black_holes: u64,
}

impl PathMtu {
    /// `most`: the largest size to try, as the host's own link has it.
    #[must_use]
    pub fn new(most: usize) -> Self {
        let most = most.max(LEAST);
        Self {
            most,
            good: LEAST,
            bad: most + 1,
            tries: 0,
            probing: None,
            next_ns: 0,
            suspect: None,
            row: Row::default(),
            came: (0, 0),
            suspicious: SUSPICIOUS[0],
            black_holes: 0,
        }
    }

    /// Bytes of the largest datagram to send.
    #[must_use]
    pub fn size(&self) -> usize {
        self.good
    }

    /// Times at which the path had begun to drop large packets.
    #[must_use]
    pub fn black_holes(&self) -> u64 {
        self.black_holes
    }

    fn candidate(&self) -> Option<usize> {
        if self.suspect.is_some() {
            return self.suspect;
        }
        let is_first = self.bad == self.most + 1;
        let middle = self.good + (self.bad - self.good) / 2;
        let size = if is_first { self.most } else { middle };
        (self.bad > self.good + STEP && size > self.good).then_some(size)
    }

    /// When to call [`PathMtu::probe`] next.
    #[must_use]
    pub fn due_ns(&self) -> u64 {
        if self.probing.is_some() { u64::MAX } else { self.next_ns }
    }

    /// The size of a probe that is to be sent now.
    pub fn probe(&mut self, now_ns: u64) -> Option<usize> {
        if now_ns < self.next_ns || self.probing.is_some() {
            return None;
        }
        if self.candidate().is_none() {
            // The search is over; a path may become larger.
            self.next_ns = now_ns + AGAIN_NS;
            self.bad = self.most + 1;
            self.tries = 0;
            return None;
        }
        self.probing = self.candidate();
        self.probing
    }

    /// A probe of this size has come, or was lost.
    pub fn probed(&mut self, now_ns: u64, size: usize, came: bool) {
        // One from before a suspicion says nothing.
        if self.probing.take_if(|probing| *probing == size).is_none() {
            return;
        }
        self.next_ns = now_ns + GAP_NS;
        if came {
            (self.good, self.tries) = (size.max(self.good), 0);
            if self.suspect.take().is_some() {
                self.suspicious = (2 * self.suspicious).min(SUSPICIOUS[1]);
            }
            return;
        }
        self.tries += 1;
        if self.tries >= TRIES[usize::from(self.suspect.is_some())] {
            (self.bad, self.tries) = (size, 0);
            self.black_holes += u64::from(self.suspect.take().is_some());
        }
    }

    /// Nothing at all is heard: what becomes of a probe says nothing of its size.
    pub fn put_off(&mut self, now_ns: u64) {
        if self.probing.take().is_some() {
            self.next_ns = now_ns + GAP_NS;
        }
    }

    /// A packet with this number, or a later one, has come: to be told before what [`PathMtu::note`] is told of it.
    pub fn heard(&mut self, number: u64) {
        if self.row.lost > 0 && number > self.row.first {
            self.row.between.get_or_insert(number);
        }
    }

    /// A packet that was no probe has come, or was lost.
    pub fn note(&mut self, now_ns: u64, number: u64, bytes: usize, came: bool) {
        // Packets from before the size shrank say nothing of the present one.
        if bytes <= LEAST || bytes > self.good {
            return;
        }
        if came {
            if self.row.lost > 0 && number >= self.row.first && bytes >= self.row.least {
                self.row = Row::default();
            }
            self.came = self.came.max((number, bytes));
            return;
        }
        let (came, of_bytes) = self.came;
        if number < came && bytes <= of_bytes {
            return;
        }
        let row = &mut self.row;
        if row.lost == 0 {
            (row.first, row.least) = (number, bytes);
        }
        row.lost += 1;
        row.first = row.first.min(number);
        row.least = row.least.min(bytes);
        row.after += u32::from(row.between.is_some_and(|between| number > between));
        if row.lost >= self.suspicious && row.after >= self.suspicious / 2 {
            (self.suspect, self.good, self.bad) = (Some(self.good), LEAST, self.most + 1);
            (self.probing, self.tries, self.next_ns) = (None, 0, now_ns);
            self.row = Row::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Searches on a path that takes datagrams up to a size; the number of probes.
    fn search(mtu: &mut PathMtu, takes: usize, from_ns: u64) -> u32 {
        let (mut now_ns, mut probes) = (from_ns, 0);
        while now_ns < from_ns + AGAIN_NS / 2 {
            if let Some(size) = mtu.probe(now_ns) {
                probes += 1;
                mtu.probed(now_ns, size, size <= takes);
            }
            now_ns += GAP_NS;
        }
        probes
    }

    proptest! {
        #[test]
        fn largest_size_is_found(takes in LEAST..1600, most in LEAST..1600) {
            let mut mtu = PathMtu::new(most);
            let probes = search(&mut mtu, takes, 0);
            let largest = takes.min(most);
            prop_assert!(mtu.size() <= largest && mtu.size() + STEP >= largest, "{} of {largest}", mtu.size());
            prop_assert!(probes < 40);
        }
    }

    /// Large packets and small ones by turns, so many of each, on a path that takes datagrams up to a size.
    fn exchange(mtu: &mut PathMtu, now_ns: u64, numbers: std::ops::Range<u64>, takes: usize) {
        for number in numbers {
            if number % 2 == 0 {
                let bytes = mtu.size();
                mtu.note(now_ns, number, bytes, bytes <= takes);
            } else {
                mtu.heard(number);
                mtu.note(now_ns, number, 400, true);
            }
        }
    }

    #[test]
    fn black_hole_is_found_and_left() {
        let mut mtu = PathMtu::new(MOST);
        search(&mut mtu, 1452, 0);
        assert_eq!(mtu.size(), 1452);
        exchange(&mut mtu, 100, 0..40, 1300);
        assert_eq!(mtu.size(), LEAST);
        search(&mut mtu, 1300, 1_000_000_000_000);
        assert!((1300 - STEP..=1300).contains(&mtu.size()), "{}", mtu.size());
        assert_eq!(mtu.black_holes(), 1);
    }

    #[test]
    fn false_alarm_is_over_with_the_next_probe() {
        let mut mtu = PathMtu::new(MOST);
        search(&mut mtu, 1452, 0);
        let mut losses = Vec::new();
        let (mut number, mut now_ns) = (0, 1_000_000_000_000);
        for _ in 0..3 {
            let before = number;
            while mtu.size() > LEAST {
                exchange(&mut mtu, now_ns, number..number + 2, 1300);
                number += 2;
            }
            losses.push((number - before) / 2);
            assert_eq!(mtu.probe(now_ns), Some(1452), "at once");
            now_ns += GAP_NS;
            mtu.probed(now_ns, 1452, true);
            assert_eq!((mtu.size(), mtu.black_holes()), (1452, 0));
        }
        assert_eq!(losses, [6, 12, 24], "each takes more to be suspected");
    }

    #[test]
    fn losses_by_themselves_and_outages_are_no_black_hole() {
        let mut mtu = PathMtu::new(MOST);
        search(&mut mtu, 1452, 0);
        for number in 0..=2000 {
            let came = number % 5 == 0;
            if came {
                mtu.heard(number);
            }
            mtu.note(1, number, 1452, came);
        }
        // All is lost, and then all comes, a small one first.
        (2001..3000).for_each(|number| mtu.note(1, number, 1452, false));
        mtu.heard(3000);
        mtu.note(1, 3001, 1452, true);
        // One that was overtaken by a larger one.
        (0..1000).for_each(|number| mtu.note(1, number, 1452, false));
        assert_eq!((mtu.size(), mtu.suspect), (1452, None));
    }
}
