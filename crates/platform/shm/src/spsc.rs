// SPDX-License-Identifier: Apache-2.0
//! Single-producer, single-consumer rings of records in shared memory, between parties that do not trust each other.
//!
//! A record is one header word (length in bytes, and a 32-bit tag of the caller) and the bytes, padded to whole words;
//! it wraps at the end of the ring like everything else. Positions count words and only grow. Each end keeps its own
//! position privately and a cached copy of the other's, so the common case touches one foreign cache line or none.
//!
//! What the other end may write is checked after it was copied. A position or a length that no honest peer can write
//! makes the ring *broken*: the call and all later ones return [`Broken`]. Each call is bounded by one record.

use crate::primitive::{AtomicU64, Ordering};

const WORD: usize = 8;

/// One ring as it lies in memory: two positions, a counter of refused pushes, and a power of two of words.
#[derive(Clone, Copy)]
pub struct RingRef<'a> {
    tail: &'a AtomicU64,
    head: &'a AtomicU64,
    full: &'a AtomicU64,
    words: &'a [AtomicU64],
}

/// The other end wrote something that no honest peer writes; the ring is out of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// The positions are further apart than the ring is long.
    #[error("ring positions are {distance} words apart, the ring has {capacity}")]
    Positions {
        /// Producer's position less the consumer's.
        distance: u64,
        /// Words of the ring.
        capacity: u64,
    },
    /// A record is longer than what was published, or than any record may be.
    #[error("ring record of {len} bytes where at most {limit} can be")]
    Length {
        /// The length in the record's header.
        len: usize,
        /// The longest possible at this place.
        limit: usize,
    },
}

/// Why a record was not pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// No room now; the consumer has to catch up. Counted in the ring.
    #[error("ring full")]
    Full,
    /// The record could never fit.
    #[error("record of {len} bytes, the ring takes at most {limit}")]
    TooLong {
        /// Length asked for.
        len: usize,
        /// Longest length.
        limit: usize,
    },
    /// The consumer broke the ring.
    #[error(transparent)]
    Broken(#[from] Broken),
}

impl<'a> RingRef<'a> {
    /// A ring over the given words. `words.len()` must be a power of two, at least 2.
    ///
    /// # Panics
    /// If it is not: the caller's layout is wrong, whatever the peer does.
    pub fn new(tail: &'a AtomicU64, head: &'a AtomicU64, full: &'a AtomicU64, words: &'a [AtomicU64]) -> Self {
        assert!(words.len() >= 2 && words.len().is_power_of_two(), "a ring needs a power of two of words");
        Self { tail, head, full, words }
    }

    /// Longest record in bytes: the whole ring less the header word.
    pub fn record_max(&self) -> usize {
        (self.words.len() - 1) * WORD
    }

    /// How many pushes were refused because the ring was full, since the ring was made.
    pub fn refused(&self) -> u64 {
        self.full.load(Ordering::Relaxed)
    }

    fn capacity(&self) -> u64 {
        self.words.len() as u64
    }

    fn word(&self, position: u64) -> &'a AtomicU64 {
        &self.words[(position & (self.capacity() - 1)) as usize]
    }

    fn check_distance(&self, tail: u64, head: u64) -> Result<u64, Broken> {
        let distance = tail.wrapping_sub(head);
        if distance > self.capacity() {
            return Err(Broken::Positions { distance, capacity: self.capacity() });
        }
        Ok(distance)
    }
}

/// The writing end of a ring.
#[derive(Debug)]
pub struct Producer {
    tail: u64,
    cached_head: u64,
    broken: Option<Broken>,
}

impl Producer {
    /// Takes the writing end over from where the ring says it is (zero in a new ring). Only one producer may be in use.
    ///
    /// # Errors
    /// [`Broken`] if the positions contradict each other.
    pub fn attach(ring: RingRef<'_>) -> Result<Self, Broken> {
        let tail = ring.tail.load(Ordering::Relaxed);
        let cached_head = ring.head.load(Ordering::Acquire);
        ring.check_distance(tail, cached_head)?;
        Ok(Self { tail, cached_head, broken: None })
    }

    /// Appends one record. Never waits.
    ///
    /// # Errors
    /// [`PushError::Full`] (counted in the ring), [`PushError::TooLong`], or [`PushError::Broken`] for good.
    pub fn push(&mut self, ring: RingRef<'_>, tag: u32, bytes: &[u8]) -> Result<(), PushError> {
        if let Some(broken) = self.broken {
            return Err(broken.into());
        }
        if bytes.len() > ring.record_max() {
            return Err(PushError::TooLong { len: bytes.len(), limit: ring.record_max() });
        }
        let needed = 1 + bytes.len().div_ceil(WORD) as u64;
        if self.tail.wrapping_sub(self.cached_head) + needed > ring.capacity() {
            let head = ring.head.load(Ordering::Acquire);
            let used = ring.check_distance(self.tail, head).inspect_err(|b| self.broken = Some(*b))?;
            self.cached_head = head;
            if used + needed > ring.capacity() {
                let refused = ring.full.load(Ordering::Relaxed);
                ring.full.store(refused.wrapping_add(1), Ordering::Relaxed);
                return Err(PushError::Full);
            }
        }
        let header = bytes.len() as u64 | u64::from(tag) << 32;
        ring.word(self.tail).store(header, Ordering::Relaxed);
        let mut position = self.tail;
        for chunk in bytes.chunks(WORD) {
            position = position.wrapping_add(1);
            let mut word = [0; WORD];
            word[..chunk.len()].copy_from_slice(chunk);
            ring.word(position).store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
        self.tail = self.tail.wrapping_add(needed);
        ring.tail.store(self.tail, Ordering::Release);
        Ok(())
    }
}

/// The reading end of a ring.
#[derive(Debug)]
pub struct Consumer {
    head: u64,
    cached_tail: u64,
    broken: Option<Broken>,
}

impl Consumer {
    /// Takes the reading end over from where the ring says it is (zero in a new ring). Only one consumer may be in use.
    ///
    /// # Errors
    /// [`Broken`] if the positions contradict each other.
    pub fn attach(ring: RingRef<'_>) -> Result<Self, Broken> {
        let head = ring.head.load(Ordering::Relaxed);
        let tail = ring.tail.load(Ordering::Acquire);
        ring.check_distance(tail, head)?;
        Ok(Self { head, cached_tail: head, broken: None })
    }

    /// Copies the oldest record to the front of `out` and frees its place; `(tag, length)`, or `None` if there is none.
    ///
    /// # Errors
    /// [`Broken`], for good, if the producer wrote nonsense, or a record longer than `out`.
    pub fn pop(&mut self, ring: RingRef<'_>, out: &mut [u8]) -> Result<Option<(u32, usize)>, Broken> {
        if let Some(broken) = self.broken {
            return Err(broken);
        }
        self.pop_inner(ring, out).inspect_err(|broken| self.broken = Some(*broken))
    }

    fn pop_inner(&mut self, ring: RingRef<'_>, out: &mut [u8]) -> Result<Option<(u32, usize)>, Broken> {
        if self.cached_tail == self.head {
            let tail = ring.tail.load(Ordering::Acquire);
            ring.check_distance(tail, self.head)?;
            self.cached_tail = tail;
            if tail == self.head {
                return Ok(None);
            }
        }
        let published = self.cached_tail.wrapping_sub(self.head);
        let header = ring.word(self.head).load(Ordering::Relaxed);
        let len = (header & 0xffff_ffff) as usize;
        let limit = out.len().min((published as usize - 1) * WORD);
        if len > limit {
            return Err(Broken::Length { len, limit });
        }
        let mut position = self.head;
        for chunk in out[..len].chunks_mut(WORD) {
            position = position.wrapping_add(1);
            let word = ring.word(position).load(Ordering::Relaxed).to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
        self.head = self.head.wrapping_add(1 + len.div_ceil(WORD) as u64);
        ring.head.store(self.head, Ordering::Release);
        Ok(Some(((header >> 32) as u32, len)))
    }

    /// Whether a record is waiting, without taking it. What a spinning reader polls.
    pub fn is_empty(&self, ring: RingRef<'_>) -> bool {
        ring.tail.load(Ordering::Acquire) == self.head
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
