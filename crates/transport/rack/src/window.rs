// SPDX-License-Identifier: Apache-2.0
//! Memory that two ends share, as one of them sees it.
//!
//! Through a PCIe bridge a write to the other end's memory costs little and a read of it much (NTSocks §4.1.2). So each end
//! has a part that the other one writes and only it reads, and nothing is ever read from the other end's part.

#[cfg(test)]
pub(crate) mod copied;

use std::{
    io,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Writes so many bytes at most to an address, and says how many.
pub type Fill<'a> = dyn FnMut(*mut u8, usize) -> io::Result<usize> + 'a;

/// Takes so many bytes at most from an address, and says how many.
pub type Drain<'a> = dyn FnMut(*const u8, usize) -> io::Result<usize> + 'a;

/// Bytes that are filled or drained at once where a window has no addresses.
const COPIED: usize = 4096;
/// Bytes that are written and read as one.
pub const WORD: usize = size_of::<u64>();

/// One end of a shared memory: both parts have the same length, a multiple of [`WORD`]. Offsets are in bytes, and those of
/// words multiples of [`WORD`].
///
/// The other end may write anything into this end's part at any time, also while it is read.
pub trait Window {
    /// Bytes of each part.
    fn len(&self) -> usize;

    /// Never, as a rule: it has room for a ring.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The memory was taken away: what is read is 0, and what is written is lost. It is to be opened anew.
    fn is_cut(&self) -> bool {
        false
    }

    /// Remote write: copies bytes into the other end's part, padded with zeros to whole words. The other end may see them in any
    /// order.
    ///
    /// # Panics
    /// If they do not lie within the part, or `at` is no multiple of [`WORD`].
    fn write(&self, at: usize, bytes: &[u8]);

    /// Remote write of bytes that something else puts there, as the kernel does those of a file: `fill` is given the place and its length, and
    /// says how many of them it has written, from the first one on. What follows these may be anything. Through a window that has no
    /// addresses they are copied once more, and may be fewer.
    ///
    /// # Errors
    /// Those of `fill`.
    ///
    /// # Panics
    /// As [`Window::write`].
    fn fill(&self, at: usize, len: usize, fill: &mut Fill<'_>) -> io::Result<usize> {
        let mut copied = [0; COPIED];
        let len = len.min(COPIED);
        let count = fill(copied.as_mut_ptr(), len)?.min(len);
        self.write(at, &copied[..count]);
        Ok(count)
    }

    /// The words of the other end's part that hold so many bytes, if they have addresses: for remote writes without a call for each
    /// (`Relaxed` stores), and for nothing else.
    ///
    /// # Panics
    /// As [`Window::write`].
    fn words_there(&self, at: usize, len: usize) -> Option<&[AtomicU64]> {
        let _ = (at, len);
        None
    }

    /// The words of this end's part that hold so many bytes, if they have addresses: for local reads without a call for each (`Relaxed`
    /// loads).
    ///
    /// # Panics
    /// As [`Window::write`].
    fn words_here(&self, at: usize, len: usize) -> Option<&[AtomicU64]> {
        let _ = (at, len);
        None
    }

    /// Remote write of a word, which the other end sees as a whole, and only after all that was written before it.
    ///
    /// # Panics
    /// As [`Window::write`].
    fn publish(&self, at: usize, word: u64);

    /// Adds to a word of the other end's part that only this end writes, as a whole, also where several threads do so; that wraps. A window
    /// whose words cannot be changed so does nothing.
    ///
    /// # Panics
    /// As [`Window::write`].
    fn adds(&self, at: usize, more: u64) {
        let _ = (at, more);
    }

    /// Local read: copies bytes from this end's part.
    ///
    /// # Panics
    /// As [`Window::write`].
    fn read(&self, at: usize, into: &mut [u8]);

    /// Local read of bytes that something else takes from there, as the kernel does that writes them to a file: `drain` is given the place
    /// and its length, and says how many of them it has taken, from the first one on. The other end may change them meanwhile. `at`: any
    /// byte. Through a window that has no addresses they are copied once more, and may be fewer.
    ///
    /// # Errors
    /// Those of `drain`.
    ///
    /// # Panics
    /// If they do not lie within the part.
    fn drain(&self, at: usize, len: usize, drain: &mut Drain<'_>) -> io::Result<usize> {
        let mut copied = [0; COPIED];
        let before = at % WORD;
        let len = len.min(COPIED - before);
        self.read(at - before, &mut copied[..before + len]);
        Ok(drain(copied[before..].as_ptr(), len)?.min(len))
    }

    /// Local read of a word: what was written before it was published is seen by later reads.
    ///
    /// # Panics
    /// As [`Window::write`].
    fn poll(&self, at: usize) -> u64;

    /// Says that a thread of this end is about to sleep by a bell, by a number that is another one each time; 0: none does any more.
    /// After that it has to look once more whether there is something, and sleep only if there is not.
    fn will_sleep(&self, by: Bell, turn: u32);

    /// Says that nobody sleeps by a bell any more, if the last who has said so has a number up to this one, and no other one does meanwhile.
    /// A window whose words cannot be changed so does nothing: what was published rings once more in vain.
    fn sleeps_no_more(&self, by: Bell, up_to: u32) {
        let _ = (by, up_to);
    }

    /// With which number a thread of the other end sleeps by this bell, or is about to; 0: none does. To be asked after something was
    /// published.
    fn sleeper(&self, bell: Bell) -> u32;

    /// Sleeps until the other end rings, but no longer than a time. It may return sooner. One thread at a time sleeps by a bell.
    fn sleep(&self, by: Bell, within: Option<Duration>);

    /// Wakes the other end's thread that sleeps by this bell, or is about to.
    fn ring(&self, bell: Bell);
}

/// What a thread sleeps for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bell {
    /// Something to read.
    Message,
    /// Room to write.
    Room,
}

/// The words that hold so many bytes from an offset on.
pub(crate) fn words(of: &[AtomicU64], at: usize, len: usize) -> &[AtomicU64] {
    assert!(at.is_multiple_of(WORD), "{at} is not the offset of a word");
    &of[at / WORD..][..len.div_ceil(WORD)]
}

/// Copies bytes into the words that hold them, each of which is written once.
pub(crate) fn store(into: &[AtomicU64], bytes: &[u8]) {
    let (whole, rest) = bytes.as_chunks::<WORD>();
    for (word, bytes) in into.iter().zip(whole) {
        word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
    }
    if let Some(word) = into.get(whole.len()) {
        let mut last = [0; WORD];
        last[..rest.len()].copy_from_slice(rest);
        word.store(u64::from_ne_bytes(last), Ordering::Relaxed);
    }
}

/// Copies bytes from the words that hold them, each of which is read once.
pub(crate) fn load(from: &[AtomicU64], into: &mut [u8]) {
    let (whole, rest) = into.as_chunks_mut::<WORD>();
    let count = whole.len();
    for (bytes, word) in whole.iter_mut().zip(from) {
        *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
    }
    if let Some(word) = from.get(count) {
        let last = word.load(Ordering::Relaxed).to_ne_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }
}
