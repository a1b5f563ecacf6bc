// SPDX-License-Identifier: Apache-2.0
//! A sequence lock: plain records in shared memory, one writer, any number of readers, nobody waits for anybody.
//!
//! The record is an array of relaxed atomic words between two looks at a sequence number that is odd while the writer
//! is at work. A reader never returns a mix of two records; when the writer will not leave it alone (or died in the
//! middle) it gives up after [`READ_RETRIES_MAX`] attempts.

use crate::primitive::{AtomicU64, Ordering, fence, spin_loop};

/// Attempts after which [`SeqLock::read`] gives up.
#[cfg(not(loom))]
pub const READ_RETRIES_MAX: usize = 256;
/// Attempts after which [`SeqLock::read`] gives up (kept small for the model checker).
#[cfg(loom)]
pub const READ_RETRIES_MAX: usize = 2;

/// `WORDS` 64-bit words under a sequence lock. All zero is a valid, empty record.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct SeqLock<const WORDS: usize> {
    seq: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl<const WORDS: usize> Default for SeqLock<WORDS> {
    fn default() -> Self {
        Self { seq: AtomicU64::new(0), words: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl<const WORDS: usize> SeqLock<WORDS> {
    /// Replaces the record. There must be only one writer at a time; two would tear each other's records (no
    /// undefined behaviour, but nonsense). A write that a crash cut short is repaired by the next one.
    pub fn write(&self, record: &[u64; WORDS]) {
        let odd = self.seq.load(Ordering::Relaxed) | 1;
        self.seq.store(odd, Ordering::Relaxed);
        // Pairs with the reader's acquire fence: whoever saw one of the words below sees the odd number too.
        fence(Ordering::Release);
        for (slot, word) in self.words.iter().zip(record) {
            slot.store(*word, Ordering::Relaxed);
        }
        self.seq.store(odd.wrapping_add(1), Ordering::Release);
    }

    /// The record as some single `write` left it, or `None` after [`READ_RETRIES_MAX`] disturbed attempts.
    pub fn read(&self) -> Option<[u64; WORDS]> {
        for _ in 0..READ_RETRIES_MAX {
            let before = self.seq.load(Ordering::Acquire);
            if before & 1 == 0 {
                let record = std::array::from_fn(|i| self.words[i].load(Ordering::Relaxed));
                fence(Ordering::Acquire);
                if self.seq.load(Ordering::Relaxed) == before {
                    return Some(record);
                }
            }
            spin_loop();
        }
        None
    }

    /// What a writer leaves behind that dies in the middle of a write; for tests.
    #[doc(hidden)]
    pub fn cut_short(&self) {
        self.seq.store(self.seq.load(Ordering::Relaxed) | 1, Ordering::Relaxed);
    }

    /// The sequence number: changes with every write, odd during one. Cheap to poll for "anything new?".
    pub fn sequence(&self) -> u64 {
        self.seq.load(Ordering::Acquire)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn readers_see_whole_records_only() {
        let lock = SeqLock::<8>::default();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 1..=200_000u64 {
                    lock.write(&[n; 8]);
                }
                stop.store(true, Ordering::Release);
            });
            while !stop.load(Ordering::Acquire) {
                if let Some(record) = lock.read() {
                    assert!(record.iter().all(|w| *w == record[0]), "torn: {record:?}");
                }
            }
        });
        assert_eq!(lock.read(), Some([200_000; 8]));
    }

    #[test]
    fn a_write_cut_short_is_reported_and_repaired_by_the_next() {
        let lock = SeqLock::<2>::default();
        lock.seq.store(6, Ordering::Relaxed);
        lock.cut_short();
        assert_eq!(lock.read(), None);
        lock.write(&[1, 2]);
        assert_eq!(lock.read(), Some([1, 2]));
        assert_eq!(lock.sequence(), 8);
    }
}
