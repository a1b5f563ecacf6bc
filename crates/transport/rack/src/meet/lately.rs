// SPDX-License-Identifier: Apache-2.0
//! What is known of sockets that somebody has asked about lately. A process that a server forks after it has accepted a connection asks
//! about the same socket again, once the server has closed it: the kernel tells some things only once, and the other end may have its
//! answer already.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// How long it is known: a server closes, and its child asks, within some milliseconds.
pub(super) const KNOWN_FOR: Duration = Duration::from_secs(2);
/// Sockets that are known. The one that was known longest makes room for a further one, and may not be asked about again: its
/// connection stays with TCP.
pub const KNOWN_MAX: usize = 1024;

/// Sockets by their numbers, the longest known first.
#[derive(Debug)]
pub(super) struct Lately<T> {
    all: VecDeque<(Instant, u64, T)>,
    most: usize,
}

impl<T> Lately<T> {
    /// With room for so many sockets.
    pub(super) fn new(most: usize) -> Self {
        Self { all: VecDeque::new(), most }
    }

    /// What is known of a socket from now on. Returns what is not any more.
    pub(super) fn put(&mut self, now: Instant, cookie: u64, known: T) -> Option<T> {
        let before = self.all.iter().position(|(_, of, _)| *of == cookie);
        let gone = match before {
            Some(at) => self.all.remove(at),
            None if self.all.len() >= self.most => self.all.pop_front(),
            None => None,
        };
        self.all.push_back((now + KNOWN_FOR, cookie, known));
        gone.map(|(.., known)| known)
    }

    #[must_use]
    pub(super) fn get(&self, now: Instant, cookie: u64) -> Option<&T> {
        let known = self.all.iter().rev().find(|(_, of, _)| *of == cookie);
        known.filter(|(until, ..)| *until > now).map(|(.., known)| known)
    }

    /// When the next one is forgotten.
    #[must_use]
    pub(super) fn until(&self) -> Option<Instant> {
        self.all.front().map(|(until, ..)| *until)
    }

    /// What is not known any more.
    pub(super) fn forget(&mut self, now: Instant) -> Vec<T> {
        let count = self.all.partition_point(|(until, ..)| *until <= now);
        self.all.drain(..count).map(|(.., known)| known).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_known_for_a_while_and_the_newest_of_them() {
        let (begin, mut lately) = (Instant::now(), Lately::new(KNOWN_MAX));
        for cookie in 0..KNOWN_MAX as u64 {
            assert_eq!(lately.put(begin, cookie, cookie), None);
        }
        assert_eq!(lately.put(begin, 9, 77), Some(9), "what was known before");
        assert_eq!(lately.put(begin, 5000, 5000), Some(0), "the longest known");
        assert_eq!((lately.get(begin, 0), lately.get(begin, 9)), (None, Some(&77)));
        let later = begin + KNOWN_FOR;
        assert_eq!(lately.until(), Some(later));
        assert_eq!(lately.put(later, 1, 1), Some(1));
        assert_eq!((lately.get(later, 9), lately.get(later, 1)), (None, Some(&1)));
        assert_eq!(lately.forget(later).len(), KNOWN_MAX - 1);
        assert_eq!((lately.get(later, 1), lately.until()), (Some(&1), Some(later + KNOWN_FOR)));
    }
}
