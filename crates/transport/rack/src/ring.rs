// SPDX-License-Identifier: Apache-2.0
//! A ring of messages in the part of the other end (NTSocks §4.1.2).
//!
//! ```text
//!  the receiver's part:  │ header │ message, padded │ header │ message, padded │ 0 │ free ...
//!                        ▲ read                                               ▲ written
//!  the sender's part:    │ read, as the receiver has told it last │
//! ```
//!
//! A message is written before its header, and with it a zero where the next header will be: the receiver finds nothing
//! there until the next one is whole. Indices count bytes and never wrap.
//!
//! The sender does not read the other end's memory. It is told how far that has read, but only if it asks for it: in the
//! header of each message with which more than half of the ring is pending. A message takes at most half of the ring, so a
//! sender that finds no room has asked.
//!
//! The rings between an agent and its clients (`fide_shm::spsc`) have both indices in memory that both ends read, which a window
//! does not allow.

mod in_place;

use std::{io, sync::atomic::Ordering};

pub(crate) use in_place::{Come, Room};

use crate::window::{Bell, Drain, Fill, WORD, Window, load};

/// Bit of a header: the receiver is to tell how far it has read, once it has read this message.
const ASKS: u64 = 1 << 32;
/// Bits of a header that hold the length of a message and one.
const LENGTH: u64 = ASKS - 1;

/// Where a ring lies: the same offsets at both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Of the word in the sender's part that says how far the receiver has read.
    pub told_at: usize,
    /// Of the ring in the receiver's part, and its bytes: a multiple of [`WORD`], at least eight of them.
    pub at: usize,
    pub len: usize,
}

/// What the other end has written cannot be: it is broken, or hostile. The ring is not to be used any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    #[error("the other end says that it has read {told} bytes, where it had read {before} and {written} were written")]
    Told { told: u64, before: u64, written: u64 },
    #[error("a header {header:#x} at byte {at}: a message has at most {most} bytes")]
    Header { header: u64, at: u64, most: usize },
}

/// Why a message is not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The receiver has to read first.
    #[error("the ring is full")]
    Full,
    #[error("a message of {len} bytes, where the ring takes {most} at most: send it in parts")]
    TooLong { len: usize, most: usize },
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// The sending end of a ring: plain numbers, so that it can lie in memory that several processes of this end share.
#[derive(Debug, Clone, Copy)]
pub struct Sender {
    place: Place,
    /// Each message asks.
    asks: bool,
    written: u64,
    /// As the receiver has told it last.
    read: u64,
}

/// The receiving end of a ring, plain as [`Sender`].
#[derive(Debug, Clone, Copy)]
pub struct Receiver {
    place: Place,
    read: u64,
    /// Bytes of the next message that were read already.
    taken: usize,
}

impl Place {
    fn check(self, window: &impl Window) {
        let fits = self.at.checked_add(self.len).is_some_and(|end| end <= window.len());
        let is_whole = [self.told_at, self.at, self.len].iter().all(|bytes| bytes.is_multiple_of(WORD));
        let is_told_outside = self.told_at < self.at || self.told_at >= self.at + self.len;
        assert!(
            fits && is_whole && is_told_outside && self.len >= 8 * WORD && self.told_at < window.len(),
            "no place for a ring: {self:?}"
        );
    }

    /// Bytes of the longest message.
    #[must_use]
    pub fn most(self) -> usize {
        (self.len / 2 - 2 * WORD).min(LENGTH as usize - 1)
    }

    /// Where a byte of the ring lies.
    fn offset(self, index: u64) -> usize {
        #[allow(clippy::cast_possible_truncation, reason = "less than the ring has bytes")]
        let within = (index % self.len as u64) as usize;
        self.at + within
    }

    /// Bytes from there to the end of the ring.
    fn up_to_end(self, index: u64) -> usize {
        self.at + self.len - self.offset(index)
    }
}

/// Bytes of a message with its header.
pub(crate) fn room(len: usize) -> u64 {
    (WORD + len.next_multiple_of(WORD)) as u64
}

impl Sender {
    /// For a ring that is empty: all of its place is 0 at both ends.
    ///
    /// # Panics
    /// If the place does not lie within the window.
    pub fn new(window: &impl Window, place: Place) -> Self {
        place.check(window);
        Self { place, asks: false, written: 0, read: 0 }
    }

    /// It asks with each message: for one that does not want to be far ahead of the receiver.
    #[must_use]
    pub fn asking(self) -> Self {
        Self { asks: true, ..self }
    }

    /// Bytes that the receiver has not read yet, with headers, as far as it was told.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn unread(&mut self, window: &impl Window) -> Result<u64, Broken> {
        self.learn(window)?;
        Ok(self.pending())
    }

    /// Its numbers, for [`Sender::at`].
    #[must_use]
    pub fn numbers(&self) -> [u64; 2] {
        [self.written, self.read]
    }

    /// As it was when it had these numbers.
    #[must_use]
    pub fn at(self, [written, read]: [u64; 2]) -> Self {
        Self { written, read, ..self }
    }

    /// Bytes of the longest message.
    #[must_use]
    pub fn most(&self) -> usize {
        self.place.most()
    }

    /// Sends a message, and wakes the receiver if it sleeps.
    ///
    /// # Errors
    /// [`SendError`]. Nothing was sent.
    pub fn send(&mut self, window: &impl Window, message: &[u8]) -> Result<(), SendError> {
        self.finds_room(window, message.len())?;
        self.put(window, 0, message);
        self.publishes(window, message.len());
        Ok(())
    }

    /// There is room for a message, which is then put there and published.
    fn finds_room(&mut self, window: &impl Window, len: usize) -> Result<(), SendError> {
        let most = self.most();
        if len > most {
            return Err(SendError::TooLong { len, most });
        }
        // The zero where the next header will be.
        let needs = room(len) + WORD as u64;
        if self.pending() + needs > self.place.len as u64 {
            self.learn(window)?;
            if self.pending() + needs > self.place.len as u64 {
                return Err(SendError::Full);
            }
        }
        Ok(())
    }

    /// Bytes of the next message, from one on that begins a word.
    fn put(&self, window: &impl Window, at: usize, bytes: &[u8]) {
        let first = self.written + (WORD + at) as u64;
        let until_end = self.place.up_to_end(first).min(bytes.len());
        window.write(self.place.offset(first), &bytes[..until_end]);
        if until_end < bytes.len() {
            window.write(self.place.at, &bytes[until_end..]);
        }
    }

    /// The bytes of the next message are there.
    fn publishes(&mut self, window: &impl Window, len: usize) {
        let next = self.written + room(len);
        window.write(self.place.offset(next), &[0; WORD]);
        let asks = if self.asks || next - self.read > self.place.len as u64 / 2 { ASKS } else { 0 };
        window.publish(self.place.offset(self.written), (len as u64 + 1) | asks);
        self.written = next;
        window.ring(Bell::Message);
    }

    /// Sends a message of at most so many bytes, which something else puts into the ring ([`Window::fill`]). How many, which are fewer if
    /// there is less room, or the ring ends; 0, and nothing was sent: there were none. None: there is not room for as many as are worth
    /// it, if so many are to be sent.
    ///
    /// # Errors
    /// Those of `fill`; [`Broken`] as `InvalidData`. Nothing was sent.
    pub fn fill(
        &mut self,
        window: &impl Window,
        most: usize,
        worth: usize,
        fill: &mut Fill<'_>,
    ) -> io::Result<Option<usize>> {
        let room = self.room(window).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))?;
        let Some(room) = room.filter(|room| *room >= worth.min(most).max(1)) else { return Ok(None) };
        let first = self.written + WORD as u64;
        let len = most.min(room).min(self.place.up_to_end(first));
        let count = window.fill(self.place.offset(first), len, fill)?;
        if count > 0 {
            self.publishes(window, count);
        }
        Ok(Some(count))
    }

    /// Whether a receiver may have read so far.
    pub(crate) fn may_be_read(&self, read: u64) -> bool {
        (self.read..=self.written).contains(&read) && read.is_multiple_of(WORD as u64)
    }

    /// Bytes of the message at an index that was written, behind so many of them, as many as there is room for; and the message's length.
    /// They are read from the other end's part, which may have changed them. None: the window has no addresses, or that is no message.
    pub(crate) fn unread_there(
        &self,
        window: &impl Window,
        [at, taken]: [u64; 2],
        into: &mut [u8],
    ) -> Option<(usize, usize)> {
        let header = window.words_there(self.place.offset(at), WORD)?[0].load(Ordering::Relaxed);
        let len = usize::try_from(header & LENGTH).ok()?.checked_sub(1).filter(|len| *len <= self.place.most())?;
        let taken = usize::try_from(taken).ok()?.min(len);
        let count = (len - taken).min(into.len());
        if at + room(len) > self.written {
            return None;
        }
        let first = at + (WORD + taken) as u64;
        let (mut done, mut before) = (0, taken % WORD);
        while done < count {
            // Words are read whole.
            let from = first + done as u64 - before as u64;
            let part = (count - done + before).min(self.place.up_to_end(from));
            let words = window.words_there(self.place.offset(from), part)?;
            if before > 0 {
                let part = (WORD - before).min(count - done);
                let word = words[0].load(Ordering::Relaxed).to_ne_bytes();
                into[done..done + part].copy_from_slice(&word[before..][..part]);
                (done, before) = (done + part, 0);
            } else {
                load(words, &mut into[done..done + part]);
                done += part;
            }
        }
        Some((count, len))
    }

    /// Bytes of the longest message that there is room for; none: not even for an empty one.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn room(&mut self, window: &impl Window) -> Result<Option<usize>, Broken> {
        self.learn(window)?;
        let free = usize::try_from(self.place.len as u64 - self.pending()).unwrap_or(0);
        // Its header, and the zero where the next one will be.
        Ok(free.checked_sub(2 * WORD).map(|free| free.min(self.most())))
    }

    /// Whether there is room for a message, or what the receiver has told is broken.
    pub fn has_room(&mut self, window: &impl Window, len: usize) -> bool {
        let needs = room(len) + WORD as u64;
        let has_room = |this: &Self| this.pending() + needs <= this.place.len as u64;
        has_room(self) || self.learn(window).is_err() || has_room(self)
    }

    /// Bytes that the receiver has not read yet, as far as it has told.
    fn pending(&self) -> u64 {
        // Where they are looked at without the lock that they are changed under, one may be older than the other.
        self.written.saturating_sub(self.read)
    }

    fn learn(&mut self, window: &impl Window) -> Result<(), Broken> {
        let told = window.poll(self.place.told_at);
        if told < self.read || told > self.written || !told.is_multiple_of(WORD as u64) {
            return Err(Broken::Told { told, before: self.read, written: self.written });
        }
        self.read = told;
        Ok(())
    }
}

impl Receiver {
    /// As [`Sender::new`].
    ///
    /// # Panics
    /// As [`Sender::new`].
    pub fn new(window: &impl Window, place: Place) -> Self {
        place.check(window);
        Self { place, read: 0, taken: 0 }
    }

    /// Its numbers, for [`Receiver::at`].
    #[must_use]
    pub fn numbers(&self) -> [u64; 2] {
        [self.read, self.taken as u64]
    }

    /// As it was when it had these numbers.
    #[must_use]
    pub fn at(self, [read, taken]: [u64; 2]) -> Self {
        Self { read, taken: usize::try_from(taken).unwrap_or(usize::MAX), ..self }
    }

    /// Bytes of the next message, and whether the sender asks how far this end has read; none: nothing has come.
    pub(crate) fn next(&self, window: &impl Window) -> Result<Option<(usize, bool)>, Broken> {
        let header = window.poll(self.place.offset(self.read));
        if header == 0 {
            return Ok(None);
        }
        let most = self.place.most();
        let len = (header & LENGTH).checked_sub(1).and_then(|len| usize::try_from(len).ok()).filter(|len| *len <= most);
        match len {
            // Of a message that was begun the header is read again.
            Some(len) if header & !(LENGTH | ASKS) == 0 && (self.taken == 0 || self.taken < len) => {
                Ok(Some((len, header & ASKS != 0)))
            }
            _ => Err(Broken::Header { header, at: self.read, most }),
        }
    }

    /// Whether something has come, or what came is broken.
    pub fn has_something(&self, window: &impl Window) -> bool {
        self.next(window) != Ok(None)
    }

    /// Whether the next message has come, and is empty.
    pub(crate) fn has_empty(&self, window: &impl Window) -> bool {
        matches!(self.next(window), Ok(Some((0, _))))
    }

    /// Bytes that have come, of whole messages and of one that was begun, but no more than are asked for.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn count(&self, window: &impl Window, most: usize) -> Result<usize, Broken> {
        let (mut ahead, mut count) = (*self, 0);
        // A hostile end could write messages all around the ring.
        while count < most
            && ahead.read - self.read < self.place.len as u64
            && let Some((len, _)) = ahead.next(window)?
        {
            count += len - ahead.taken;
            ahead.passes(len);
        }
        Ok(count.min(most))
    }

    /// Appends the next message, or what is left of it, to a buffer, and returns its length; none: nothing has come.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn receive(&mut self, window: &impl Window, into: &mut Vec<u8>) -> Result<Option<usize>, Broken> {
        let Some(next) = self.next(window)? else { return Ok(None) };
        let (before, left) = (into.len(), next.0 - self.taken);
        into.resize(before + left, 0);
        let told = self.copies(window, next, &mut into[before..]);
        Ok(Some(self.tells(window, told)))
    }

    /// Copies the next message, or what is left of it, into a buffer, as far as there is room; none: nothing has come. What there
    /// was no room for is read next.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn read_some(&mut self, window: &impl Window, into: &mut [u8]) -> Result<Option<usize>, Broken> {
        let Some(next) = self.next(window)? else { return Ok(None) };
        let told = self.copies(window, next, into);
        Ok(Some(self.tells(window, told)))
    }

    /// Has something else take bytes of the next message, or of what is left of it ([`Window::drain`]): how many, which are fewer than there
    /// are where it has no room for them, or the ring ends; none: nothing has come, or an empty message.
    ///
    /// # Errors
    /// Those of `drain`; [`Broken`] as `InvalidData`. Nothing was taken.
    pub fn drain(&mut self, window: &impl Window, most: usize, drain: &mut Drain<'_>) -> io::Result<Option<usize>> {
        let next = self.next(window).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))?;
        let Some(next) = next.filter(|(len, _)| *len > 0) else { return Ok(None) };
        let first = self.read + (WORD + self.taken) as u64;
        let len = most.min(next.0 - self.taken).min(self.place.up_to_end(first));
        let count = window.drain(self.place.offset(first), len, drain)?.min(len);
        let told = self.takes(next, count);
        Ok(Some(self.tells(window, told)))
    }

    fn tells(&self, window: &impl Window, (count, asks): (usize, bool)) -> usize {
        if asks {
            window.publish(self.place.told_at, self.read);
            window.ring(Bell::Room);
        }
        count
    }

    /// Copies the next messages into a buffer, as far as there is room, and leaves them there to be read. How many bytes.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn peek(&self, window: &impl Window, into: &mut [u8]) -> Result<usize, Broken> {
        let (mut ahead, mut at) = (*self, 0);
        while at < into.len()
            && ahead.read - self.read < self.place.len as u64
            && let Some(next) = ahead.next(window)?
        {
            at += ahead.copies(window, next, &mut into[at..]).0;
        }
        Ok(at)
    }

    /// Copies what is left of the next message, as far as there is room, and goes on behind it: how many bytes, and whether that was its
    /// end and the sender wants to know.
    /// The header is not read again: the other end may have changed it.
    fn copies(&mut self, window: &impl Window, next: (usize, bool), into: &mut [u8]) -> (usize, bool) {
        let count = into.len().min(next.0 - self.taken);
        self.copy(window, self.read + (WORD + self.taken) as u64, &mut into[..count]);
        self.takes(next, count)
    }

    /// Goes on behind so many bytes of the next message, as [`Receiver::copies`] does.
    fn takes(&mut self, (len, asks): (usize, bool), count: usize) -> (usize, bool) {
        self.taken += count;
        let is_whole = self.taken == len;
        if is_whole {
            self.passes(len);
        }
        (count, is_whole && asks)
    }

    /// Goes on behind a message of so many bytes.
    fn passes(&mut self, len: usize) {
        self.read += room(len);
        self.taken = 0;
    }

    /// From any byte of the ring.
    fn copy(&self, window: &impl Window, from: u64, into: &mut [u8]) {
        // Words are read whole.
        let before = usize::try_from(from % WORD as u64).unwrap_or(0);
        let (begin, rest) = into.split_at_mut(if before == 0 { 0 } else { into.len().min(WORD - before) });
        if !begin.is_empty() {
            let mut word = [0; WORD];
            window.read(self.place.offset(from - before as u64), &mut word);
            begin.copy_from_slice(&word[before..][..begin.len()]);
        }
        let from = from + begin.len() as u64;
        let (until_end, rest) = rest.split_at_mut(self.place.up_to_end(from).min(rest.len()));
        if !until_end.is_empty() {
            window.read(self.place.offset(from), until_end);
        }
        if !rest.is_empty() {
            window.read(self.place.at, rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, Ordering},
        thread,
        time::Duration,
    };

    use proptest::prelude::*;

    use super::*;
    use crate::{shm::ShmWindow, window::copied::Copied};

    /// The word that tells is the first one of each part.
    const TOLD: usize = 0;
    const WORDS: usize = 64;
    const PLACE: Place = Place { told_at: TOLD, at: 64, len: WORDS * WORD - 64 };

    fn ends() -> ([ShmWindow<WORDS>; 2], Sender, Receiver) {
        let windows = ShmWindow::<WORDS>::pair().unwrap();
        let (sender, receiver) = (Sender::new(&windows[0], PLACE), Receiver::new(&windows[1], PLACE));
        (windows, sender, receiver)
    }

    /// Any number, the same for the same one.
    fn mixed(number: u64) -> u64 {
        let number = (number ^ number >> 31).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (number ^ number >> 27).wrapping_mul(0x94D0_49BB_1331_11EB)
    }

    fn message(number: u64, most: usize) -> Vec<u8> {
        let len = usize::try_from(mixed(number) % (most as u64 + 1)).unwrap();
        (0..len as u64).map(|at| mixed(number << 16 | at) as u8).collect()
    }

    proptest! {
        /// As the kernel fills them, which may have fewer than there is room for, none, or an error.
        #[test]
        fn messages_that_others_fill_come_whole_and_in_order(
            steps in prop::collection::vec((1..=2 * PLACE.most(), 0..=PLACE.most(), 0..=PLACE.most(), 0..300_usize, any::<bool>()), 1..200),
        ) {
            let (windows, mut sender, mut receiver) = ends();
            let (mut sent, mut got) = (Vec::new(), Vec::new());
            for (most, worth, has, reads, has_addresses) in steps {
                let before = sent.len();
                let mut fill = |into: *mut u8, len: usize| {
                    assert!(len <= most && len > 0);
                    if has == 0 {
                        return Err(io::ErrorKind::NotFound.into());
                    }
                    let count = len.min(has - 1);
                    for at in 0..count {
                        let byte = mixed(sent.len() as u64) as u8;
                        // SAFETY: within the place, which nobody else writes.
                        unsafe { into.add(at).write(byte) };
                        sent.push(byte);
                    }
                    Ok(count)
                };
                let filled = match has_addresses {
                    true => sender.fill(&windows[0], most, worth, &mut fill),
                    false => sender.fill(&Copied(windows[0].clone()), most, worth, &mut fill),
                };
                match filled {
                    Ok(count) => prop_assert_eq!(sent.len() - before, count.unwrap_or(0)),
                    Err(why) => prop_assert!(why.kind() == io::ErrorKind::NotFound && sent.len() == before),
                }
                let mut piece = vec![0; reads];
                if worth % 2 == 0 {
                    let count = receiver.read_some(&windows[1], &mut piece).unwrap().unwrap_or(0);
                    got.extend_from_slice(&piece[..count]);
                    continue;
                }
                // It takes a part of what it is given, at times nothing, or fails.
                let before = got.len();
                let mut drain = |from: *const u8, len: usize| {
                    assert!(len <= reads + 1 && len > 0);
                    if reads % 7 == 0 {
                        return Err(io::ErrorKind::NotFound.into());
                    }
                    let count = len.min(reads % 50);
                    // SAFETY: so many bytes are there, which nobody writes meanwhile.
                    got.extend_from_slice(unsafe { std::slice::from_raw_parts(from, count) });
                    Ok(count)
                };
                let drained = match has_addresses {
                    true => receiver.drain(&windows[1], reads + 1, &mut drain),
                    false => receiver.drain(&Copied(windows[1].clone()), reads + 1, &mut drain),
                };
                match drained {
                    Ok(count) => prop_assert_eq!(got.len() - before, count.unwrap_or(0)),
                    Err(why) => prop_assert!(why.kind() == io::ErrorKind::NotFound && got.len() == before),
                }
            }
            while receiver.receive(&windows[1], &mut got).unwrap().is_some() {}
            prop_assert_eq!(got, sent);
        }

        /// Of whatever lengths, and however far the receiver is behind.
        #[test]
        fn messages_come_whole_and_in_order(steps in prop::collection::vec((0..=PLACE.most(), 0..4_usize), 1..400)) {
            let (windows, mut sender, mut receiver) = ends();
            let (mut waiting, mut sent) = (std::collections::VecDeque::new(), 0_u64);
            for (len, reads) in steps {
                let message: Vec<u8> = (0..len as u64).map(|at| mixed(sent << 16 | at) as u8).collect();
                match sender.send(&windows[0], &message) {
                    Ok(()) => waiting.push_back(message),
                    Err(why) => {
                        prop_assert_eq!(why, SendError::Full);
                        let pending: u64 = waiting.iter().map(|message: &Vec<u8>| room(message.len())).sum();
                        // Told late at most: what is pending and what is not told fills half of the ring.
                        prop_assert!(pending + room(len) + WORD as u64 > PLACE.len as u64 / 2);
                    }
                }
                sent += 1;
                for _ in 0..reads {
                    let mut got = b"before".to_vec();
                    let expected = waiting.pop_front();
                    prop_assert_eq!(receiver.has_something(&windows[1]), expected.is_some());
                    prop_assert_eq!(receiver.receive(&windows[1], &mut got).unwrap(), expected.as_ref().map(Vec::len));
                    prop_assert_eq!(&got[6..], expected.as_deref().unwrap_or_default());
                }
            }
            // Once all is read there is room for the longest one.
            while let Some(expected) = waiting.pop_front() {
                let mut got = Vec::new();
                receiver.receive(&windows[1], &mut got).unwrap();
                prop_assert_eq!(got, expected);
            }
            prop_assert_eq!(sender.send(&windows[0], &vec![1; PLACE.most()]), Ok(()));
        }

        /// In whatever pieces it is read, and looked at before.
        #[test]
        fn bytes_of_messages_are_read_in_any_pieces(
            lens in prop::collection::vec(0..=PLACE.most(), 1..60), pieces in prop::collection::vec(0..300_usize, 1..9),
        ) {
            let (windows, mut sender, mut receiver) = ends();
            let (mut sent, mut got, mut pieces) = (Vec::new(), Vec::new(), pieces.into_iter().cycle());
            for (number, len) in (0_u64..).zip(lens) {
                let message: Vec<u8> = (0..len as u64).map(|at| mixed(number << 16 | at) as u8).collect();
                let mut reads = |receiver: &mut Receiver| {
                    let mut piece = vec![0; pieces.next().unwrap()];
                    let mut before = piece.clone();
                    let there = receiver.count(&windows[1], usize::MAX).unwrap();
                    let looked = receiver.peek(&windows[1], &mut before).unwrap();
                    prop_assert_eq!(looked, there.min(piece.len()));
                    // Restored from its numbers, as another process would.
                    *receiver = Receiver::new(&windows[1], PLACE).at(receiver.numbers());
                    let count = receiver.read_some(&windows[1], &mut piece).unwrap();
                    prop_assert_eq!(&piece[..count.unwrap_or(0)], &before[..count.unwrap_or(0)]);
                    got.extend_from_slice(&piece[..count.unwrap_or(0)]);
                    Ok(count.is_some())
                };
                for _ in 0..1000 {
                    if sender.send(&windows[0], &message).is_ok() {
                        sent.extend_from_slice(&message);
                        break;
                    }
                    reads(&mut receiver)?;
                }
                reads(&mut receiver)?;
            }
            let mut rest = Vec::new();
            while receiver.receive(&windows[1], &mut rest).unwrap().is_some() {}
            got.extend_from_slice(&rest);
            prop_assert!(got == sent, "{} of {}", got.len(), sent.len());
        }

        /// Whatever the other end writes, and whenever: an error at most, and no message longer than there may be.
        #[test]
        fn whatever_the_other_end_writes_is_checked(
            writes in prop::collection::vec((0..WORDS, prop_oneof![any::<u64>(), 0..2000_u64, Just(0), Just(ASKS | 9)], 0..3_usize), 1..200),
        ) {
            let windows = ShmWindow::<WORDS>::pair().unwrap();
            let (mut sender, mut receiver) = (Sender::new(&windows[0], PLACE), Receiver::new(&windows[0], PLACE));
            for (at, word, turns) in writes {
                windows[1].publish(at * WORD, word);
                for _ in 0..turns {
                    let mut got = Vec::new();
                    let _ = receiver.peek(&windows[0], &mut [0; 700]);
                    let _ = receiver.read_some(&windows[0], &mut [0; 5]);
                    if let Ok(Some(len)) = receiver.receive(&windows[0], &mut got) {
                        prop_assert!(len == got.len() && len <= PLACE.most());
                    }
                    let _ = sender.send(&windows[0], &[7; 40]);
                    prop_assert!(sender.pending() <= PLACE.len as u64);
                }
            }
        }
    }

    #[test]
    fn message_that_is_too_long_is_refused_and_changes_nothing() {
        let (windows, mut sender, mut receiver) = ends();
        let most = sender.most();
        let why = sender.send(&windows[0], &vec![0; most + 1]).unwrap_err();
        assert_eq!(why, SendError::TooLong { len: most + 1, most });
        assert!(why.to_string().contains("send it in parts"));
        assert!(!receiver.has_something(&windows[1]));
        assert_eq!(sender.send(&windows[0], &vec![0; most]), Ok(()));
        assert_eq!(receiver.receive(&windows[1], &mut Vec::new()), Ok(Some(most)));
    }

    #[test]
    fn index_that_goes_back_or_ahead_is_an_error() {
        for told in [8, 7, u64::MAX] {
            let (windows, mut sender, _) = ends();
            let full = std::iter::repeat_with(|| sender.send(&windows[0], &[])).find(Result::is_err);
            assert_eq!(full, Some(Err(SendError::Full)));
            let written = sender.written;
            windows[1].publish(TOLD, written);
            assert_eq!(sender.send(&windows[0], &[]), Ok(()));
            while sender.send(&windows[0], &[]).is_ok() {}
            windows[1].publish(TOLD, told);
            assert!(matches!(sender.send(&windows[0], &[]), Err(SendError::Broken(Broken::Told { .. }))), "{told}");
        }
    }

    /// Two threads, with sleeps: nothing is lost, and nobody sleeps for good (the test would take days).
    #[test]
    fn threads_exchange_messages_and_sleep() {
        const COUNT: u64 = 50_000;
        let (windows, mut sender, mut receiver) = ends();
        let [here, there] = windows;
        let sends = thread::spawn(move || {
            for number in 0..COUNT {
                let message = message(number, PLACE.most());
                while sender.send(&here, &message) == Err(SendError::Full) {
                    here.will_sleep(Bell::Room, 1);
                    if !sender.has_room(&here, message.len()) {
                        here.sleep(Bell::Room, Some(Duration::from_secs(10)));
                    }
                    here.will_sleep(Bell::Room, 0);
                }
            }
        });
        for number in 0..COUNT {
            let mut got = Vec::new();
            while receiver.receive(&there, &mut got).unwrap().is_none() {
                there.will_sleep(Bell::Message, 1);
                if !receiver.has_something(&there) {
                    there.sleep(Bell::Message, Some(Duration::from_secs(10)));
                }
                there.will_sleep(Bell::Message, 0);
            }
            assert!(got == message(number, PLACE.most()), "message {number}");
        }
        sends.join().unwrap();
    }

    /// A hostile end writes without a pause while this one reads and sends.
    #[test]
    fn a_hostile_end_that_writes_meanwhile_does_no_harm() {
        let [here, there] = ShmWindow::<WORDS>::pair().unwrap();
        let is_over = AtomicBool::new(false);
        thread::scope(|threads| {
            threads.spawn(|| {
                let mut number = 0;
                while !is_over.load(Ordering::Relaxed) {
                    number += 1;
                    let word = mixed(number);
                    // Often a header that could be one.
                    let word = if number.is_multiple_of(3) { word % 500 } else { word };
                    there.publish(usize::try_from(mixed(number << 8) % WORDS as u64).unwrap() * WORD, word);
                }
            });
            let is_over = EndsOnDrop(&is_over);
            let mut got = Vec::new();
            for _ in 0..200_000 {
                let (mut sender, mut receiver) = (Sender::new(&here, PLACE), Receiver::new(&here, PLACE));
                for _ in 0..3 {
                    got.clear();
                    if let Ok(Some(len)) = receiver.receive(&here, &mut got) {
                        assert!(len == got.len() && len <= PLACE.most());
                    }
                    let _ = sender.send(&here, &[7; 100]);
                }
            }
            drop(is_over);
        });
    }

    /// Also when an assertion fails: else its thread goes on for ever.
    struct EndsOnDrop<'a>(&'a AtomicBool);

    impl Drop for EndsOnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}
