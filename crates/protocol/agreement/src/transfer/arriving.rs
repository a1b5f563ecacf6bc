// SPDX-License-Identifier: Apache-2.0
//! A payload under way to this host.

use std::ops::Range;

use blake3::Hasher;
use fide_types::HostId;

use super::{HASH_STEP, Identity, WANTS_PER_RESEND, error::TransferError};

/// A host that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) host: HostId,
    /// The number of its newest offer; 0: it has not offered the payload.
    pub(super) number: u64,
    /// How often the chunks that came from it were wrong.
    pub(super) tries: u8,
}

/// What became of a payload with a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// The chunk had come before.
    Late,
    /// Other chunks are missing.
    More,
    /// All chunks have come, and match the identity.
    Whole,
    /// All chunks have come, and do not match the identity.
    Wrong,
}

#[derive(Debug, Clone)]
pub(super) struct Arriving {
    pub(super) identity: Identity,
    /// Never empty; the first one is asked.
    pub(super) sources: Vec<Source>,
    bytes: Box<[u8]>,
    chunk_max: usize,
    here: Bitmap,
    chunks: u32,
    came: u32,
    /// Chunks before this one were asked for.
    asked: u32,
    /// The same at the last resend.
    asked_before: u32,
    /// The missing ones of these chunks are asked for again, ...
    again: Range<u32>,
    /// ... in at most this many wants.
    again_left: usize,
    /// Bytes from the first one on that are hashed.
    hashed: usize,
    hasher: Hasher,
}

impl Arriving {
    /// Allocates `identity.len` bytes: the caller has to check the length.
    pub(super) fn new(identity: Identity, source: Source, chunk_max: usize) -> Self {
        let len = usize::try_from(identity.len).expect("at most payload_max");
        let chunks = super::chunks(identity.len, chunk_max);
        Self {
            identity,
            sources: vec![source],
            bytes: vec![0; len].into_boxed_slice(),
            chunk_max,
            here: Bitmap::new(chunks),
            chunks,
            came: 0,
            asked: 0,
            asked_before: 0,
            again: 0..0,
            again_left: 0,
            hashed: 0,
            hasher: Hasher::new(),
        }
    }

    pub(super) fn into_parts(self) -> (Vec<Source>, Box<[u8]>) {
        (self.sources, self.bytes)
    }

    /// A chunk has come from a host.
    ///
    /// # Errors
    /// [`TransferError`]; nothing has changed.
    pub(super) fn take(&mut self, from: u16, index: u32, bytes: &[u8]) -> Result<Taken, TransferError> {
        let (identity, asked, chunks) = (self.identity, self.asked, self.chunks);
        if from != self.sources[0].host {
            return Err(TransferError::NotAsked { identity, from, asked: self.sources[0].host });
        }
        if index >= chunks {
            return Err(TransferError::Index { identity, index, chunks });
        }
        if index >= asked {
            return Err(TransferError::Early { identity, index, asked });
        }
        let place = super::place(index, self.chunk_max, self.bytes.len());
        let (len, want) = (bytes.len(), place.len());
        if len != want {
            return Err(TransferError::ChunkLength { identity, index, len, want });
        }
        if self.here.has(index) {
            return Ok(Taken::Late);
        }
        self.bytes[place].copy_from_slice(bytes);
        self.here.set(index);
        self.came += 1;
        self.hash();
        if self.came < self.chunks {
            return Ok(Taken::More);
        }
        let right = *self.hasher.finalize().as_bytes() == self.identity.hash;
        Ok(if right { Taken::Whole } else { Taken::Wrong })
    }

    /// Hashes the bytes up to the first gap, so that little is left to do when the last chunk comes.
    fn hash(&mut self) {
        let hashed_chunks = u32::try_from(self.hashed / self.chunk_max).expect("a chunk's index");
        let end = self.here.next(hashed_chunks, false);
        let end = super::place(end, self.chunk_max, self.bytes.len()).start;
        if end - self.hashed >= HASH_STEP || end == self.bytes.len() {
            self.hasher.update(&self.bytes[self.hashed..end]);
            self.hashed = end;
        }
    }

    /// Drops all chunks that have come.
    pub(super) fn restart(&mut self) {
        self.here.clear();
        self.hasher.reset();
        (self.came, self.asked, self.asked_before, self.hashed) = (0, 0, 0, 0);
        self.again = 0..0;
    }

    /// Another host is asked from now on.
    pub(super) fn ask_again(&mut self) {
        self.again = 0..self.asked;
        self.again_left = WANTS_PER_RESEND;
        self.asked_before = 0;
    }

    /// Asks again for chunks that were asked for before the last call and have not come.
    pub(super) fn resend(&mut self) {
        let before = std::mem::replace(&mut self.asked_before, self.asked);
        // The chunks that the bound cut off the last time come first.
        let left = self.again.clone();
        self.again = if left.is_empty() { 0..before } else { left.start..before.max(left.end) };
        self.again_left = WANTS_PER_RESEND;
    }

    /// The next chunks to be asked for again, as first and count.
    pub(super) fn next_again(&mut self, wants_max: u32) -> Option<(u32, u32)> {
        if self.again_left == 0 || self.again.is_empty() {
            return None;
        }
        let first = self.here.next(self.again.start, false);
        if first >= self.again.end {
            self.again = 0..0;
            return None;
        }
        let end = self.here.next(first, true).min(self.again.end).min(first.saturating_add(wants_max));
        self.again.start = end;
        self.again_left -= 1;
        Some((first, end - first))
    }

    /// The next chunks to be asked for, as first and count; at most `wants_max` are asked for and have not
    /// come.
    pub(super) fn next_want(&mut self, wants_max: u32) -> Option<(u32, u32)> {
        let outstanding = self.asked - self.came;
        // Not a want for each chunk.
        if self.asked == self.chunks || outstanding > wants_max / 2 {
            return None;
        }
        let (first, count) = (self.asked, (wants_max - outstanding).min(self.chunks - self.asked));
        self.asked += count;
        Some((first, count))
    }

    /// Bytes of the buffer and of the bitmap.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.bytes.len(), self.here.words.len() * 8)
    }

    #[cfg(test)]
    pub(super) fn outstanding(&self) -> u32 {
        self.asked - self.came
    }
}

#[derive(Debug, Clone)]
struct Bitmap {
    words: Box<[u64]>,
    bits: u32,
}

impl Bitmap {
    fn new(bits: u32) -> Self {
        Self { words: vec![0; bits.div_ceil(64) as usize].into_boxed_slice(), bits }
    }

    fn has(&self, at: u32) -> bool {
        self.words[at as usize / 64] >> (at % 64) & 1 == 1
    }

    fn set(&mut self, at: u32) {
        self.words[at as usize / 64] |= 1 << (at % 64);
    }

    fn clear(&mut self) {
        self.words.fill(0);
    }

    /// The first bit from `from` on that is set, or is not; the number of bits if there is none.
    fn next(&self, from: u32, set: bool) -> u32 {
        let flip = if set { 0 } else { u64::MAX };
        let mut mask = u64::MAX << (from % 64);
        for at in from / 64..self.bits.div_ceil(64) {
            let found = (self.words[at as usize] ^ flip) & mask;
            if found != 0 {
                return (at * 64 + found.trailing_zeros()).min(self.bits);
            }
            mask = u64::MAX;
        }
        self.bits
    }
}
