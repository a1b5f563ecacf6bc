// SPDX-License-Identifier: Apache-2.0
//! Waiting events, by time: a calendar queue (Brown, 1988). Most events happen within a few heartbeats, and
//! lie in a page for each short span of time; later ones are in a heap. A page has one event or none most of
//! the time.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::Next;

/// True time of a page, ns, as a power of two.
const PAGE_BITS: u32 = 14;
/// Pages: 4.2 ms.
const PAGES: usize = 256;

pub(super) struct Events {
    /// Keys of the events of the next [`PAGES`] spans, by span modulo their number.
    pages: Vec<Vec<u128>>,
    /// Bit by page: it has events.
    filled: [u64; PAGES / 64],
    /// The span of the event that was taken last: no event of an earlier span waits.
    span: u64,
    /// Keys of events that were later than all pages.
    later: BinaryHeap<Reverse<u128>>,
    /// How many events there have been, so that events of the same time have an order.
    number: u32,
    /// Waiting events by place, and free places.
    waiting: Vec<Option<Next>>,
    free: Vec<u32>,
}

/// Key of a waiting event: its time, then its number, then its place.
fn key(at_ns: u64, number: u32, place: u32) -> u128 {
    u128::from(at_ns) << 64 | u128::from(number) << 32 | u128::from(place)
}

#[allow(clippy::cast_possible_truncation, reason = "parts of a key")]
fn when_and_where(key: u128) -> (u64, u32) {
    ((key >> 64) as u64, key as u32)
}

#[allow(clippy::cast_possible_truncation, reason = "a remainder")]
fn page(span: u64) -> usize {
    (span % PAGES as u64) as usize
}

impl Events {
    pub(super) fn new() -> Self {
        Self {
            pages: vec![Vec::new(); PAGES],
            filled: [0; PAGES / 64],
            span: 0,
            later: BinaryHeap::new(),
            number: 0,
            waiting: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, at_ns: u64, next: Next) {
        let place = match self.free.pop() {
            Some(place) => {
                self.waiting[place as usize] = Some(next);
                place
            }
            None => {
                self.waiting.push(Some(next));
                u32::try_from(self.waiting.len() - 1).expect("a bounded number of events waits")
            }
        };
        self.number = self.number.checked_add(1).expect("a run has some million events");
        let (key, span) = (key(at_ns, self.number, place), (at_ns >> PAGE_BITS).max(self.span));
        if span - self.span >= PAGES as u64 {
            return self.later.push(Reverse(key));
        }
        let page = page(span);
        self.pages[page].push(key);
        self.filled[page / 64] |= 1 << (page % 64);
    }

    /// The next event, and its time.
    pub(super) fn pop(&mut self) -> Option<(u64, Next)> {
        let on_page = self.first_page().and_then(|page| {
            let (at, key) = self.pages[page].iter().enumerate().min_by_key(|(_, key)| **key)?;
            Some((page, at, *key))
        });
        let later = self.later.peek().map(|Reverse(key)| *key);
        let key = match on_page {
            Some((page, at, key)) if later.is_none_or(|later| key < later) => {
                self.pages[page].swap_remove(at);
                if self.pages[page].is_empty() {
                    self.filled[page / 64] &= !(1 << (page % 64));
                }
                key
            }
            _ => self.later.pop()?.0,
        };
        let (at_ns, place) = when_and_where(key);
        self.span = self.span.max(at_ns >> PAGE_BITS);
        self.free.push(place);
        Some((at_ns, self.waiting[place as usize].take().expect("an event happens once")))
    }

    /// The first page with events, from the present span on, wrapping around.
    fn first_page(&self) -> Option<usize> {
        let (word, bit) = (page(self.span) / 64, page(self.span) % 64);
        let words = self.filled.len();
        (0..=words).find_map(|step| {
            let at = (word + step) % words;
            // The pages of the first word before the present one come last.
            let bits = match step {
                0 => self.filled[at] & u64::MAX << bit,
                _ => self.filled[at],
            };
            (bits != 0).then(|| 64 * at + bits.trailing_zeros() as usize)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};

    #[test]
    fn events_are_ordered_by_time_then_by_push() {
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(7);
        let (mut events, mut sorted) = (Events::new(), std::collections::BTreeSet::new());
        let (mut now_ns, mut pushed) = (0, 0);
        for _ in 0..100_000 {
            if sorted.is_empty() || random.random_range(0..9) < 4 {
                let ahead_ns = [0, 1, 20_000, 1_000_000, 5_000_000, 90_000_000][random.random_range(0..6)];
                let at_ns = now_ns + random.random_range(0..=ahead_ns);
                events.push(at_ns, Next::Agent(pushed));
                sorted.insert((at_ns, pushed));
                pushed += 1;
            } else {
                let popped = events.pop().map(|(at_ns, next)| match next {
                    Next::Agent(number) => (at_ns, number),
                    other => panic!("{other:?} was never pushed"),
                });
                assert_eq!(popped, sorted.pop_first());
                now_ns = popped.map_or(now_ns, |(at_ns, _)| at_ns);
            }
        }
        assert!(pushed > 40_000, "{pushed}");
    }
}
