// SPDX-License-Identifier: Apache-2.0
//! The order of one peer's changing requests, as carried by a header.
//!
//! Every changing request carries `Fide-Sequence: INCARNATION.NUMBER`. The incarnation of a peer never goes
//! back; its requests are numbered 1, 2, 3 ... without a gap. A peer that got no answer repeats the request
//! with the same number, as often as it likes: the answer is the stored one, and the request is carried out
//! once.
//!
//! A number is used up by an answer that was decided and stored, also by a refusal. Requests turned away
//! before that (busy, too many, not understood, read-only) use up nothing.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The header's name.
pub const HEADER: &str = "fide-sequence";

/// Where a request stands among its peer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Sequence {
    /// Which life of the peer; from 1, never goes back.
    pub incarnation: u64,
    /// Which request of that life; from 1, without a gap.
    pub number: u64,
}

/// A header that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{shown}` is no sequence; write Fide-Sequence: INCARNATION.NUMBER, two decimal numbers from 1 to 18446744073709551615 \
     without sign or leading zeros"
)]
pub struct SequenceError {
    shown: String,
}

impl FromStr for Sequence {
    type Err = SequenceError;

    fn from_str(text: &str) -> Result<Sequence, SequenceError> {
        let number = |part: &str| {
            let plain = part.bytes().all(|b| b.is_ascii_digit()) && !part.starts_with('0');
            if plain { part.parse::<u64>().ok() } else { None }
        };
        text.split_once('.')
            .and_then(|(incarnation, n)| Some(Sequence { incarnation: number(incarnation)?, number: number(n)? }))
            .ok_or_else(|| SequenceError { shown: text.chars().take(64).collect() })
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.incarnation, self.number)
    }
}

impl Sequence {
    /// The one after it; after the last number of an incarnation comes the next incarnation.
    #[must_use]
    pub fn next(self) -> Sequence {
        match self.number.checked_add(1) {
            Some(number) => Sequence { number, ..self },
            None => Sequence { incarnation: self.incarnation.saturating_add(1), number: 1 },
        }
    }
}

#[cfg(test)]
mod tests;
