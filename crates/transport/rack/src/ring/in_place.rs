// SPDX-License-Identifier: Apache-2.0
//! Messages that are written where the receiver will find them, and used where they have come, without a copy beside the ring.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Place, Receiver, SendError, Sender};
use crate::window::{WORD, Window};

/// Where the bytes of a message lie.
#[derive(Debug, Clone, Copy)]
struct Lies {
    first: usize,
    /// Bytes from there to the end of the ring, which goes on at its beginning.
    until_end: usize,
    begins: usize,
}

impl Lies {
    fn of(place: Place, header: u64) -> Self {
        let first = header + WORD as u64;
        Self { first: place.offset(first), until_end: place.up_to_end(first), begins: place.at }
    }

    /// Of a word that begins so many bytes behind the first one, of a message that is not longer than the ring.
    fn offset(self, at: usize) -> usize {
        if at < self.until_end { self.first + at } else { self.begins + at - self.until_end }
    }

    /// Up to the end of the ring, and at its beginning, of so many bytes: offset and length.
    fn parts(self, len: usize) -> [(usize, usize); 2] {
        let before = len.min(self.until_end);
        [(self.first, before), (self.begins, len - before)]
    }
}

/// The words of a message, up to the end of the ring and at its beginning, which are looked up once. None: they have no addresses.
type Words<'a> = Option<[&'a [AtomicU64]; 2]>;

fn word([before, behind]: [&[AtomicU64]; 2], number: usize) -> &AtomicU64 {
    before.get(number).unwrap_or_else(|| &behind[number - before.len()])
}

/// The place of the next message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room<'a> {
    lies: Lies,
    words: Words<'a>,
    pub(crate) len: usize,
}

impl Sender {
    /// There is room for a message of so many bytes, until another one is sent.
    ///
    /// # Errors
    /// [`SendError`].
    pub(crate) fn reserve(&mut self, window: &impl Window, len: usize) -> Result<(), SendError> {
        self.finds_room(window, len)
    }

    /// The place of a message for which there is room: to be written by [`Sender::put_at`] and [`Room::put_word`], and sent by
    /// [`Sender::send_put`]. Nobody sees anything of it before.
    pub(crate) fn place_of<'a>(&self, window: &'a impl Window, len: usize) -> Room<'a> {
        let lies = Lies::of(self.place, self.written);
        let [before, behind] = lies.parts(len).map(|(at, len)| window.words_there(at, len));
        Room { lies, words: before.zip(behind).map(Into::into), len }
    }

    /// Bytes of the next message, from one on that begins a word; the last word is padded with zeros.
    pub(crate) fn put_at(&self, window: &impl Window, at: usize, bytes: &[u8]) {
        self.put(window, at, bytes);
    }

    /// Sends so many bytes that were put: no more than there is room for.
    pub(crate) fn send_put(&mut self, window: &impl Window, len: usize) {
        self.publishes(window, len);
    }
}

impl Room<'_> {
    /// Eight bytes of the message, from one on that begins a word.
    pub(crate) fn put_word(&self, window: &impl Window, at: usize, value: u64) {
        match self.words {
            Some(words) => word(words, at / WORD).store(value, Ordering::Relaxed),
            None => window.write(self.lies.offset(at), &value.to_ne_bytes()),
        }
    }

    /// Words of the message, from a byte on that begins one, for as many as there is room for and are made; how many.
    pub(crate) fn put_words(&self, window: &impl Window, at: usize, values: impl IntoIterator<Item = u64>) -> usize {
        let (first, room) = (at / WORD, (self.len - at) / WORD);
        // A value that there is no room for is not made.
        let mut values = values.into_iter().take(room);
        let Some([before, behind]) = self.words else {
            let put =
                |(number, value): (usize, u64)| window.write(self.lies.offset(number * WORD), &value.to_ne_bytes());
            return (first..).zip(values).map(put).count();
        };
        let (skipped, more) = (first.min(before.len()), first.saturating_sub(before.len()));
        let mut count = 0;
        for part in [&before[skipped..], &behind[more..]] {
            // The words first: no value is made that the part has no room for.
            for (word, value) in part.iter().zip(&mut values) {
                word.store(value, Ordering::Relaxed);
                count += 1;
            }
        }
        count
    }
}

/// A message that has come, or what is left of it. The other end may change its bytes, but not how many they are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Come<'a> {
    /// As [`Receiver::next`] has read it, once.
    next: (usize, bool),
    lies: Lies,
    words: Words<'a>,
    taken: usize,
    pub(crate) len: usize,
}

impl Receiver {
    /// The next message, of which [`Receiver::next`] has said this.
    pub(crate) fn come<'a>(&self, window: &'a impl Window, next: (usize, bool)) -> Come<'a> {
        let (lies, taken) = (Lies::of(self.place, self.read), self.taken);
        let [before, behind] = lies.parts(next.0).map(|(at, len)| window.words_here(at, len));
        Come { next, lies, words: before.zip(behind).map(Into::into), taken, len: next.0 - taken }
    }

    /// Copies bytes of the next message, from one on.
    pub(crate) fn copy_at(&self, window: &impl Window, at: usize, into: &mut [u8]) {
        self.copy(window, self.read + (WORD + self.taken + at) as u64, into);
    }

    /// Goes on behind so many bytes of it, and says so if the other end has asked.
    pub(crate) fn release(&mut self, window: &impl Window, come: Come<'_>, count: usize) {
        let told = self.takes(come.next, count.min(come.len));
        self.tells(window, told);
    }
}

impl<'a> Come<'a> {
    /// Eight bytes, from one on; those beyond the last one are anything.
    pub(crate) fn word_at(&self, window: &impl Window, at: usize) -> u64 {
        let at = self.taken + at;
        let (number, before) = (at / WORD, at % WORD);
        let load = |number| match self.words {
            Some(words) => word(words, number).load(Ordering::Relaxed),
            None => window.poll(self.lies.offset(number * WORD)),
        };
        if before == 0 {
            return load(number);
        }
        let mut both = [0; 2 * WORD];
        both[..WORD].copy_from_slice(&load(number).to_ne_bytes());
        both[WORD..].copy_from_slice(&load(number + 1).to_ne_bytes());
        let mut bytes = [0; WORD];
        bytes.copy_from_slice(&both[before..][..WORD]);
        u64::from_ne_bytes(bytes)
    }

    /// All whole words.
    pub(crate) fn all_words(self, window: &'a impl Window) -> impl Iterator<Item = u64> {
        let whole = self.len / WORD;
        let has_addresses = self.taken.is_multiple_of(WORD);
        let (there, skipped) = (self.words.filter(|_| has_addresses), self.taken / WORD);
        let others = if there.is_some() { 0 } else { whole };
        let [before, behind] = there.unwrap_or_default();
        let (before, skipped) = (before.get(skipped..).unwrap_or_default(), skipped.saturating_sub(before.len()));
        let (before, left) = (&before[..whole.min(before.len())], whole.saturating_sub(before.len()));
        let behind = behind.get(skipped..).unwrap_or_default();
        let behind = &behind[..left.min(behind.len())];
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let others = (0..others).map(move |word| self.word_at(window, word * WORD));
        before.iter().map(load).chain(behind.iter().map(load)).chain(others)
    }
}
