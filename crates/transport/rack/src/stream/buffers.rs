// SPDX-License-Identifier: Apache-2.0
//! Bytes of a stream that are made and used where they lie, for programs that are written for it (NTSocks §4.5).
//!
//! | mode | writer | reader | bytes are copied |
//! |---|---|---|---|
//! | origin: a program as it is | [`write`](io::Write::write) | [`read`](io::Read::read) | twice: from its buffer into the other end's part, and from there into the reader's buffer |
//! | shm: a buffer is lent | [`WriteHalf::lend`] | [`ReadHalf::borrow`] | not by [`Lent::put_words`] and [`Borrowed::words`]; once by what takes or gives a slice: from it into the other end's part, or into it |
//! | direct: as they are made | [`WriteHalf::fill_from`], [`WriteHalf::fill`] | either | not at the writer, which hands the address to what makes them, as to the kernel that reads a file; once where the window has no addresses |
//!
//! The modes may take turns, and each end has its own. A message that is lent or filled is one piece of the stream, and the
//! reader sees nothing of it before it is sent.
//!
//! NTSocks copies twice more, between the programs and a proxy. There is none here, so its `shm-nts` copies what `origin`
//! does here.
//!
//! **No slices.** The other end may write into this end's part at any time, so that what was borrowed may change while it is
//! used, and read twice be two things. A Rust slice must not. Words are read one by one, each whole; what has to stay as it
//! was checked is copied first.
//!
//! A lent buffer lies in the other end's part, which is written and never read: behind a PCIe bridge a read would take
//! microseconds, and the other end could have changed it.

use std::{
    io, mem,
    os::fd::{AsFd, AsRawFd},
};

use super::{ReadHalf, WriteHalf, broken, sent};
use crate::{
    ring::{Come, Receiver, Room, Sender},
    stream::WRITES_NO_MORE_AT,
    window::{Fill, WORD, Window},
};

/// A fill goes on when there is room for so much of the longest message: one part of so many.
const WORTH: usize = 4;

/// A buffer in the other end's part. Dropped, nothing is sent.
#[derive(Debug)]
pub struct Lent<'a, W: Window> {
    window: &'a W,
    sender: &'a mut Sender,
    room: Room<'a>,
    /// Bytes that were appended ([`io::Write`]), and of the last word those that do not make it whole.
    appended: usize,
    begun: [u8; WORD],
}

/// What has come, and lies in this end's part until this is dropped.
#[derive(Debug)]
pub struct Borrowed<'a, W: Window> {
    window: &'a W,
    receiver: &'a mut Receiver,
    /// None: the end of the stream.
    come: Option<Come<'a>>,
}

impl<W: Window> WriteHalf<W> {
    /// Bytes of the longest buffer that is lent.
    #[must_use]
    pub fn lends_at_most(&self) -> usize {
        self.sender.most()
    }

    /// Lends a buffer of so many bytes, as soon as there is room. What it holds is undefined until it is written. The whole of it is sent
    /// at once: many short ones let the reader begin sooner than a long one does.
    ///
    /// # Errors
    /// Those of a write; `InvalidInput`: it is longer than [`WriteHalf::lends_at_most`].
    pub fn lend(&mut self, len: usize) -> io::Result<Lent<'_, W>> {
        let has_room = |sender: &mut Sender, window: &W| sender.has_room(window, len);
        self.goes_on(has_room, |sender, window| sent(sender.reserve(window, len)))?;
        let (window, sender) = (&*self.window, &mut self.sender);
        Ok(Lent { window, room: sender.place_of(window, len), sender, appended: 0, begun: [0; WORD] })
    }

    /// Sends at most so many bytes of a file, from where it is read next: the kernel reads them into the other end's part. How many; 0 at its
    /// end. There may be room for fewer.
    ///
    /// # Errors
    /// Those of a write, and the file's.
    pub fn fill_from(&mut self, file: impl AsFd, most: usize) -> io::Result<usize> {
        let file = file.as_fd();
        self.fill(most, &mut |place, len| {
            // SAFETY: the kernel writes so many bytes at most there, which `fill` gives for that. No reference to them is made.
            let count = unsafe { libc::read(file.as_raw_fd(), place.cast(), len) };
            usize::try_from(count).map_err(|_| io::Error::last_os_error())
        })
    }

    /// Has something else put at most so many bytes into the other end's part, as soon as there is room for them or for a quarter of the
    /// longest message: how many it has put there, 0 if it had none. It may be given room for fewer. It only writes there, and is called
    /// once.
    ///
    /// # Errors
    /// Those of a write, and of `fill`.
    pub fn fill(&mut self, most: usize, fill: &mut Fill<'_>) -> io::Result<usize> {
        if most == 0 {
            return Ok(0);
        }
        let worth = most.min(self.sender.most() / WORTH);
        self.goes_on(
            |sender, window| sender.has_room(window, worth),
            |sender, window| sender.fill(window, most, worth, fill),
        )
    }
}

impl<W: Window> ReadHalf<W> {
    /// Borrows what has come next, as soon as something has: a message, or what is left of one. It is empty at the end of the stream only.
    ///
    /// # Errors
    /// Those of a read.
    pub fn borrow(&mut self) -> io::Result<Borrowed<'_, W>> {
        let next = loop {
            // Before the ring is looked at: what was written before the end is there then.
            let is_over = self.window.poll(WRITES_NO_MORE_AT) != 0;
            match self.receiver.next(&*self.window).map_err(broken)? {
                Some((0, _)) => return Err(super::empty()),
                None if !is_over => self.waits()?,
                next => break next,
            }
        };
        let (window, receiver) = (&*self.window, &mut self.receiver);
        Ok(Borrowed { window, come: next.map(|next| receiver.come(window, next)), receiver })
    }
}

impl<W: Window> Lent<'_, W> {
    #[must_use]
    pub fn len(&self) -> usize {
        self.room.len
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes into the buffer, from one on that begins a word of it. Bytes behind them up to the next word become 0.
    ///
    /// # Panics
    /// If they do not lie within the buffer, or `at` is no multiple of [`WORD`].
    pub fn put(&mut self, at: usize, bytes: &[u8]) {
        self.check(at, bytes.len());
        self.sender.put_at(self.window, at, bytes);
    }

    /// Writes eight bytes, in this host's order.
    ///
    /// # Panics
    /// As [`Lent::put`].
    pub fn put_u64(&mut self, at: usize, word: u64) {
        self.check(at, WORD);
        self.room.put_word(self.window, at, word);
    }

    /// Writes words as they are made, from a byte on, for as many as there is room for, and says how many: in less time than by
    /// [`Lent::put_u64`]. Give it an iterator by value: what one behind a reference keeps is written to memory for each word, behind words
    /// that wait for the other core, which takes four times as long as a copy.
    ///
    /// # Panics
    /// As [`Lent::put`], of none.
    pub fn put_words(&mut self, at: usize, words: impl IntoIterator<Item = u64>) -> usize {
        self.check(at, 0);
        self.room.put_words(self.window, at, words)
    }

    fn check(&self, at: usize, count: usize) {
        let fits = at.checked_add(count).is_some_and(|end| end <= self.len());
        if !fits || !at.is_multiple_of(WORD) {
            lies_outside(at, count, self.len());
        }
    }

    /// Bytes that were appended by [`io::Write`].
    #[must_use]
    pub fn appended(&self) -> usize {
        self.appended
    }

    /// Sends the first bytes of the buffer; of none nothing is sent.
    ///
    /// # Panics
    /// If they are more than the buffer has.
    pub fn send(self, count: usize) {
        assert!(count <= self.len(), "{count} bytes of a buffer of {}", self.len());
        if count > 0 {
            self.sender.send_put(self.window, count);
        }
    }
}

/// Apart from the loops of those who write word by word.
#[cold]
fn lies_outside(at: usize, count: usize, len: usize) -> ! {
    panic!("{count} bytes at {at} of a buffer of {len}, where each word is written as a whole");
}

/// Appends, from the first byte of the buffer on and behind what was appended before. At the end of the buffer it writes nothing.
impl<W: Window> io::Write for Lent<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let bytes = &bytes[..bytes.len().min(self.len() - self.appended)];
        let before = self.appended % WORD;
        let (begins, rest) = bytes.split_at(if before == 0 { 0 } else { bytes.len().min(WORD - before) });
        if !begins.is_empty() {
            // The other end's part is not read: the word is kept here.
            let until = before + begins.len();
            self.begun[before..until].copy_from_slice(begins);
            let word = self.begun;
            self.put(self.appended - before, &word[..until]);
            self.appended += begins.len();
        }
        if !rest.is_empty() {
            self.put(self.appended, rest);
            let last = rest.len() % WORD;
            self.begun[..last].copy_from_slice(&rest[rest.len() - last..]);
            self.appended += rest.len();
        }
        Ok(bytes.len())
    }

    /// It is seen when it is sent.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<W: Window> Borrowed<'_, W> {
    #[must_use]
    pub fn len(&self) -> usize {
        self.come.map_or(0, |come| come.len)
    }

    /// The end of the stream.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes, from one on, and leaves them there.
    ///
    /// # Panics
    /// If there are not as many.
    pub fn copy_to(&self, at: usize, into: &mut [u8]) {
        self.check(at, into.len());
        if !into.is_empty() {
            self.receiver.copy_at(self.window, at, into);
        }
    }

    /// Eight bytes as they are now, from any one on, in this host's order.
    ///
    /// # Panics
    /// If there are not as many.
    #[must_use]
    pub fn read_u64(&self, at: usize) -> u64 {
        self.check(at, WORD);
        self.come.map_or(0, |come| come.word_at(self.window, at))
    }

    /// All whole words, from the first byte on: `len() % 8` bytes are left.
    pub fn words(&self) -> impl Iterator<Item = u64> {
        let window = self.window;
        self.come.into_iter().flat_map(move |come| come.all_words(window))
    }

    fn check(&self, at: usize, count: usize) {
        let fits = at.checked_add(count).is_some_and(|end| end <= self.len());
        assert!(fits, "{count} bytes at {at}, where {} have come", self.len());
    }

    /// Gives back the first bytes only: the others are read next.
    ///
    /// # Panics
    /// If there are not as many.
    pub fn release(mut self, count: usize) {
        self.check(0, count);
        if let Some(come) = mem::take(&mut self.come) {
            self.receiver.release(self.window, come, count);
        }
    }
}

/// Gives back all of it.
impl<W: Window> Drop for Borrowed<'_, W> {
    fn drop(&mut self) {
        if let Some(come) = self.come {
            self.receiver.release(self.window, come, come.len);
        }
    }
}

#[cfg(test)]
mod tests;
