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
pub(super) const KNOWN_MAX: usize = 1024;

/// Sockets by their numbers, the longest known first.
#[derive(Debug)]
pub(super) struct Lately<T>(VecDeque<(Instant, u64, T)>);

impl<T> Default for Lately<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Lately<T> {
    /// What is known of a socket from now on. Returns what is not any more.
    pub(super) fn put(&mut self, now: Instant, cookie: u64, known: T) -> Option<T> {
        let before = self.0.iter().position(|(_, of, _)| *of == cookie);
        let gone = match before {
            Some(at) => self.0.remove(at),
            None if self.0.len() >= KNOWN_MAX => self.0.pop_front(),
            None => None,
        };
        self.0.push_back((now + KNOWN_FOR, cookie, known));
        gone.map(|(.., known)| known)
    }

    #[must_use]
    pub(super) fn get(&self, now: Instant, cookie: u64) -> Option<&T> {
        let known = self.0.iter().rev().find(|(_, of, _)| *of == cookie);
        known.filter(|(until, ..)| *until > now).map(|(.., known)| known)
    }

    /// When the next one is forgotten.
    #[must_use]
    pub(super) fn until(&self) -> Option<Instant> {
        self.0.front().map(|(until, ..)| *until)
    }

    /// What is not known any more.
    pub(super) fn forget(&mut self, now: Instant) -> Vec<T> {
        let count = self.0.partition_point(|(until, ..)| *until <= now);
        self.0.drain(..count).map(|(.., known)| known).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_known_for_a_while_and_the_newest_of_them() {
        let (begin, mut lately) = (Instant::now(), Lately::default());
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
