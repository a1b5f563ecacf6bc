// SPDX-License-Identifier: Apache-2.0
//! The largest datagram that a path takes (DPLPMTUD, RFC 8899).
//!
//! Packets begin small enough for every path. Then packets that carry nothing but padding look for more: the
//! largest candidate first, then halfway between what came and what did not. A path that began to drop large
//! packets (a *black hole*) is found when several of them in a row were lost while small ones came: then everything
//! begins anew.

/// Bytes of a UDP datagram that every path takes (RFC 9000 §14).
pub const LEAST: usize = 1200;
/// Of IPv6 over Ethernet.
pub const MOST: usize = 1452;
/// A search is over once it is this exact.
const STEP: usize = 16;
/// Probes of one size that are lost before that size counts as too large.
const TRIES: u32 = 3;
/// Large packets lost in a row, without one that came, before the path counts as a black hole.
const BLACK_HOLE: u32 = 6;
/// How long until a larger size is tried again.
const AGAIN_NS: u64 = 600_000_000_000;
/// Time between two probes, at least.
const GAP_NS: u64 = 100_000_000;

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
    lost_in_row: u32,
    black_holes: u64,
}

impl PathMtu {
    /// `most`: the largest size to try, as the host's own link has it.
    #[must_use]
    pub fn new(most: usize) -> Self {
        let most = most.max(LEAST);
        Self { most, good: LEAST, bad: most + 1, tries: 0, probing: None, next_ns: 0, lost_in_row: 0, black_holes: 0 }
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

    /// The probe has come, or was lost.
    pub fn probed(&mut self, now_ns: u64, came: bool) {
        let Some(size) = self.probing.take() else { return };
        self.next_ns = now_ns + GAP_NS;
        if came {
            (self.good, self.tries) = (size.max(self.good), 0);
            return;
        }
        self.tries += 1;
        if self.tries >= TRIES {
            (self.bad, self.tries) = (size, 0);
        }
    }

    /// A packet that was no probe has come, or was lost. True: the path is a black hole for the present size, which
    /// was made the least.
    pub fn note(&mut self, now_ns: u64, bytes: usize, came: bool) -> bool {
        if bytes <= LEAST {
            return false;
        }
        if came {
            self.lost_in_row = 0;
            return false;
        }
        self.lost_in_row += 1;
        if self.lost_in_row < BLACK_HOLE || self.good == LEAST {
            return false;
        }
        self.black_holes += 1;
        let next_ns = now_ns + GAP_NS;
        *self = Self { bad: self.good, next_ns, black_holes: self.black_holes, ..Self::new(self.most) };
        true
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
                mtu.probed(now_ns, size <= takes);
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

    #[test]
    fn black_hole_is_found_and_left() {
        let mut mtu = PathMtu::new(MOST);
        search(&mut mtu, 1452, 0);
        assert_eq!(mtu.size(), 1452);
        for at in 0..20 {
            // Losses by themselves.
            mtu.note(at, 1452, at % 3 == 0);
        }
        assert_eq!((mtu.size(), mtu.black_holes()), (1452, 0));
        assert!((0..BLACK_HOLE).any(|_| mtu.note(100, 1452, false)));
        assert_eq!((mtu.size(), mtu.black_holes()), (LEAST, 1));
        search(&mut mtu, 1300, 1_000_000_000_000);
        assert!((1300 - STEP..=1300).contains(&mtu.size()), "{}", mtu.size());
    }
}
