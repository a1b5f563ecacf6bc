// SPDX-License-Identifier: Apache-2.0
//! Makes repeated requests harmless: keeps each peer's last number that was carried out, and its answer.
//! The rules of the numbers are in [`fide_controller_api::sequence`].
//!
//! No clock and no I/O: [`Sequences`] is part of what the shell stores, see [`crate::shell`].

use std::collections::BTreeMap;
use std::hash::Hasher;

use fide_controller_api::Code;
use fide_controller_api::identity::Identity;
use fide_controller_api::sequence::Sequence;
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;

/// Peers whose numbers are kept. One more is refused until the operator forgets another.
pub const PEERS_MAX: usize = 1024;
/// Bytes of an answer that are kept for a repeat. A longer one is not kept: its repeat is answered with
/// `answer_gone`.
pub const ANSWER_MAX: usize = 16 * 1024;

/// The answer to a request, as it is kept: status and JSON text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    pub status: u16,
    /// `None` if it was longer than [`ANSWER_MAX`].
    pub body: Option<String>,
}

impl Kept {
    pub fn new(status: u16, body: String) -> Kept {
        Kept { status, body: (body.len() <= ANSWER_MAX).then_some(body) }
    }
}

/// What to do with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// Carry it out, then [`Sequences::record`].
    Fresh,
    /// It was carried out already; this was the answer.
    Repeat(Kept),
}

/// Why a request is not carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error(
        "{got} was carried out before, or belongs to a former life of {peer}; the last one was {last}: go on with {expected}"
    )]
    Replayed { peer: Identity, got: Sequence, last: Sequence, expected: Sequence },
    #[error("{got} comes too early for {peer}; send {expected} first")]
    OutOfOrder { peer: Identity, got: Sequence, expected: Sequence },
    #[error("{got} of {peer} was carried out already for another request; repeat that one, or go on with {expected}")]
    Reused { peer: Identity, got: Sequence, expected: Sequence },
    #[error(
        "the order of {PEERS_MAX} peers is kept already, none is left for {peer}; an operator must remove a host first"
    )]
    TooManyPeers { peer: Identity },
}

impl Refusal {
    /// The error's code in the answer.
    pub fn code(&self) -> Code {
        match self {
            Refusal::Replayed { .. } => Code::Replayed,
            Refusal::OutOfOrder { .. } => Code::OutOfOrder,
            Refusal::Reused { .. } => Code::NumberReused,
            Refusal::TooManyPeers { .. } => Code::TooManyPeers,
        }
    }

    /// The number that the peer should send next, if that is known.
    pub fn expected(&self) -> Option<Sequence> {
        match self {
            Refusal::Replayed { expected, .. }
            | Refusal::OutOfOrder { expected, .. }
            | Refusal::Reused { expected, .. } => Some(*expected),
            Refusal::TooManyPeers { .. } => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Last {
    sequence: Sequence,
    digest: u64,
    answer: Kept,
}

/// The numbers of all peers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sequences {
    peers: BTreeMap<Identity, Last>,
}

impl Sequences {
    /// Judges request `got` of `peer`, whose content has the digest `digest` (see [`digest`]). Changes
    /// nothing.
    pub fn check(&self, peer: Identity, got: Sequence, digest: u64) -> Result<Admission, Refusal> {
        let Some(last) = self.peers.get(&peer) else {
            let expected = Sequence { number: 1, ..got };
            return match got.number {
                _ if self.peers.len() >= PEERS_MAX => Err(Refusal::TooManyPeers { peer }),
                1 => Ok(Admission::Fresh),
                _ => Err(Refusal::OutOfOrder { peer, got, expected }),
            };
        };
        let expected = match got.incarnation > last.sequence.incarnation {
            true => Sequence { number: 1, ..got },
            false => last.sequence.next(),
        };
        if got == last.sequence {
            return match digest == last.digest {
                true => Ok(Admission::Repeat(last.answer.clone())),
                false => Err(Refusal::Reused { peer, got, expected }),
            };
        }
        if got < last.sequence {
            return Err(Refusal::Replayed { peer, got, last: last.sequence, expected });
        }
        if got != expected {
            return Err(Refusal::OutOfOrder { peer, got, expected });
        }
        Ok(Admission::Fresh)
    }

    /// Notes that `sequence` of `peer`, for which [`Sequences::check`] said [`Admission::Fresh`], was answered
    /// by `answer`.
    pub fn record(&mut self, peer: Identity, sequence: Sequence, digest: u64, answer: Kept) {
        self.peers.insert(peer, Last { sequence, digest, answer });
    }

    /// The last sequence of `peer` that was carried out.
    pub fn last(&self, peer: Identity) -> Option<Sequence> {
        self.peers.get(&peer).map(|last| last.sequence)
    }

    /// Forgets a peer that was removed for good. Its old requests could be replayed after that, so its
    /// certificate must be revoked first.
    pub fn forget(&mut self, peer: Identity) {
        self.peers.remove(&peer);
    }
}

/// A digest of a request, to distinguish a repeat from another request with the same number. Guards against
/// a peer's mistakes, not against the peer.
pub fn digest(method: &str, target: &str, body: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new();
    for part in [method.as_bytes(), target.as_bytes(), body] {
        hasher.write_u64(part.len() as u64);
        hasher.write(part);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests;
