// SPDX-License-Identifier: Apache-2.0
//! Answers to requests that clients have numbered, so that a request that is sent again is not executed again.
//!
//! They are part of the replicated state: a unit that executes numbered requests brings their answers along
//! ([`crate::unit`]), and a server that joins takes over all of them. They are no keys, so `FLUSHALL` forgets
//! none, and dumps are those of a stock server.
//!
//! ```text
//! a note:  u64 ms since 1970, u64 number, u16 length of the client's id, the id, u32 length of the answer, the
//!          answer in RESP; the length u32::MAX stands for an answer that was too long to be kept
//! ```

use std::collections::{BTreeMap, HashMap};

/// Most clients whose last answer is kept. Of more the one that was quiet longest is forgotten.
pub const CLIENTS_MAX: usize = 10_000;
/// A client is remembered at least so long after its last numbered request, ms: until then a new client is
/// refused rather than this one forgotten.
pub const KEPT_MS: i64 = 3_600_000;
/// Longest id of a client, bytes.
pub const ID_MAX: usize = 64;
/// Longest answer that is kept, bytes. Of a longer one a retry is told that its command was executed.
pub const ANSWER_MAX: usize = 4096;
/// Bytes of a note besides the id and the answer.
const HEADER_LEN: usize = 22;

/// What was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// In Redis' protocol.
    Bytes(Vec<u8>),
    TooLong,
}

/// A request that was executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// When, ms since 1970, by the clock of the server that led.
    pub at_ms: i64,
    pub client: Vec<u8>,
    pub number: u64,
    pub answer: Answer,
}

impl Note {
    #[must_use]
    pub fn new(at_ms: i64, client: &[u8], number: u64, answer: &[u8]) -> Self {
        let answer = if answer.len() > ANSWER_MAX { Answer::TooLong } else { Answer::Bytes(answer.to_vec()) };
        Self { at_ms, client: client.to_vec(), number, answer }
    }

    #[allow(clippy::cast_possible_truncation, reason = "ids and answers are below ID_MAX and ANSWER_MAX")]
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.at_ms.to_le_bytes());
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&(self.client.len() as u16).to_le_bytes());
        out.extend_from_slice(&self.client);
        match &self.answer {
            Answer::Bytes(bytes) => {
                out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
                out.extend_from_slice(bytes);
            }
            Answer::TooLong => out.extend_from_slice(&u32::MAX.to_le_bytes()),
        }
    }

    /// The note at the beginning of `bytes`, and what follows it.
    fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (at_ms, rest) = bytes.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        let (client, rest) = rest.split_at_checked(u16::from_le_bytes(*len).into())?;
        let (len, rest) = rest.split_first_chunk()?;
        let (answer, rest) = match u32::from_le_bytes(*len) {
            u32::MAX => (Answer::TooLong, rest),
            len => {
                let (answer, rest) = rest.split_at_checked(len as usize)?;
                (Answer::Bytes(answer.to_vec()), rest)
            }
        };
        let note = Self {
            at_ms: i64::from_le_bytes(*at_ms),
            client: client.to_vec(),
            number: u64::from_le_bytes(*number),
            answer,
        };
        (note.client.len() <= ID_MAX).then_some((note, rest))
    }
}

/// Why a numbered request is not executed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OnceError {
    #[error("an id of {0} bytes; 1 to {ID_MAX} name a client")]
    Id(usize),
    #[error(
        "number {number} of client {client} is over: the last one was {last}, and only its answer is kept; count on from there"
    )]
    Old { client: String, number: u64, last: u64 },
    #[error(
        "number {number} of client {client} was executed, and its answer was longer than {ANSWER_MAX} bytes, so it was not kept"
    )]
    NotKept { client: String, number: u64 },
    #[error(
        "{CLIENTS_MAX} clients have sent numbered requests within the last hour, and no more are remembered; use fewer ids, or send it without FIDE.ONCE"
    )]
    Full,
}

#[derive(Debug, Clone)]
struct Last {
    note: Note,
    /// Its place among all, by which the one that was quiet longest is found.
    order: u64,
}

/// The last answer of each client.
#[derive(Debug, Clone, Default)]
pub struct Once {
    last: HashMap<Vec<u8>, Last>,
    by_order: BTreeMap<u64, Vec<u8>>,
    orders: u64,
    digest: u64,
}

impl Once {
    #[must_use]
    pub fn clients(&self) -> usize {
        self.last.len()
    }

    /// A number that is the same where all answers are, for comparisons between servers.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// The answer of a request that was executed before; none: it is to be executed.
    ///
    /// # Errors
    /// [`OnceError`]: it is neither.
    pub fn look(&self, client: &[u8], number: u64, now_ms: i64) -> Result<Option<&[u8]>, OnceError> {
        if client.is_empty() || client.len() > ID_MAX {
            return Err(OnceError::Id(client.len()));
        }
        let name = || String::from_utf8_lossy(client).escape_debug().to_string();
        let Some(Last { note, .. }) = self.last.get(client) else {
            let oldest = self.by_order.values().next().and_then(|client| self.last.get(client));
            let is_full = self.last.len() >= CLIENTS_MAX
                && oldest.is_some_and(|oldest| now_ms.saturating_sub(oldest.note.at_ms) < KEPT_MS);
            return if is_full { Err(OnceError::Full) } else { Ok(None) };
        };
        if number > note.number {
            return Ok(None);
        }
        if number < note.number {
            return Err(OnceError::Old { client: name(), number, last: note.number });
        }
        match &note.answer {
            Answer::Bytes(bytes) => Ok(Some(bytes)),
            Answer::TooLong => Err(OnceError::NotKept { client: name(), number }),
        }
    }

    /// Keeps an answer, in place of the client's former one.
    pub fn keep(&mut self, note: Note) {
        if !self.last.contains_key(&note.client)
            && self.last.len() >= CLIENTS_MAX
            && let Some((_, oldest)) = self.by_order.pop_first()
            && let Some(gone) = self.last.remove(&oldest)
        {
            self.digest ^= hash(&gone.note);
        }
        self.orders += 1;
        let order = self.orders;
        self.digest ^= hash(&note);
        self.by_order.insert(order, note.client.clone());
        if let Some(former) = self.last.insert(note.client.clone(), Last { note, order }) {
            self.by_order.remove(&former.order);
            self.digest ^= hash(&former.note);
        }
    }

    /// Keeps the notes of a unit. False: they cannot be read.
    #[must_use]
    pub fn keep_all(&mut self, mut notes: &[u8]) -> bool {
        while !notes.is_empty() {
            let Some((note, rest)) = Note::read(notes) else { return false };
            self.keep(note);
            notes = rest;
        }
        true
    }

    /// All answers as notes, those that were given first in front: [`Once::keep_all`] makes the same of them.
    #[must_use]
    pub fn dump(&self) -> Vec<u8> {
        let notes = self.by_order.values().filter_map(|client| Some(&self.last.get(client)?.note));
        let mut out = Vec::with_capacity(self.last.len() * (HEADER_LEN + ID_MAX));
        notes.for_each(|note| note.write(&mut out));
        out
    }
}

/// FNV-1a of a note.
fn hash(note: &Note) -> u64 {
    let mut bytes = Vec::new();
    note.write(&mut bytes);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn retry_has_the_answer_and_older_numbers_are_over() {
        let mut once = Once::default();
        assert_eq!(once.look(b"a", 5, 0), Ok(None), "any number may be the first");
        once.keep(Note::new(0, b"a", 5, b":1\r\n"));
        assert_eq!(once.look(b"a", 5, 0), Ok(Some(&b":1\r\n"[..])));
        assert_eq!(once.look(b"a", 7, 0), Ok(None));
        assert_eq!(once.look(b"a", 4, 0), Err(OnceError::Old { client: "a".to_owned(), number: 4, last: 5 }));
        assert_eq!(once.look(b"b", 4, 0), Ok(None));
        assert_eq!(once.look(b"", 1, 0), Err(OnceError::Id(0)));
        assert_eq!(once.look(&[b'x'; ID_MAX + 1], 1, 0), Err(OnceError::Id(ID_MAX + 1)));
        once.keep(Note::new(0, b"a", 6, &[b'x'; ANSWER_MAX + 1]));
        assert_eq!(once.look(b"a", 6, 0), Err(OnceError::NotKept { client: "a".to_owned(), number: 6 }));
    }

    #[test]
    fn quiet_client_is_forgotten_at_the_bound_and_others_are_not() {
        let mut once = Once::default();
        let name = |number: usize| number.to_string().into_bytes();
        (0..CLIENTS_MAX).for_each(|number| once.keep(Note::new(0, &name(number), 1, b"+OK\r\n")));
        // The first one is not the quietest any more.
        once.keep(Note::new(1, &name(0), 2, b"+OK\r\n"));
        assert_eq!(once.look(b"new", 1, KEPT_MS - 1), Err(OnceError::Full));
        assert_eq!(once.look(&name(1), 2, KEPT_MS - 1), Ok(None), "it is known");
        assert_eq!(once.look(b"new", 1, KEPT_MS), Ok(None));
        once.keep(Note::new(KEPT_MS, b"new", 1, b"+OK\r\n"));
        assert_eq!(once.clients(), CLIENTS_MAX);
        assert_eq!(once.look(&name(0), 2, KEPT_MS), Ok(Some(&b"+OK\r\n"[..])));
        assert!(!once.last.contains_key(&name(1)));
    }

    proptest! {
        #[test]
        fn dump_makes_the_same_answers(notes in prop::collection::vec((0u8..6, 0u64..9, prop::collection::vec(any::<u8>(), 0..20)), 0..40)) {
            let (mut once, mut all) = (Once::default(), Vec::new());
            for (client, number, answer) in notes {
                let note = Note::new(7, &[client], number, &answer);
                note.write(&mut all);
                once.keep(note);
            }
            let (mut from_dump, mut from_notes) = (Once::default(), Once::default());
            prop_assert!(from_dump.keep_all(&once.dump()) && from_notes.keep_all(&all));
            for other in [&from_dump, &from_notes] {
                prop_assert_eq!((other.digest(), other.dump()), (once.digest(), once.dump()));
            }
        }

        #[test]
        fn any_bytes_are_notes_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            let _ = Once::default().keep_all(&bytes);
        }
    }
}
