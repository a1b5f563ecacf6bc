// SPDX-License-Identifier: Apache-2.0
//! Errors, and what would be right.

use fide_types::{HostId, MAX_HOSTS};

use super::{ARRIVING_MAX, CHUNK_MAX, Identity, OFFERS_MAX, PAYLOADS_MAX};

/// Why a host does not fetch an offered payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Longer than its `payload_max`.
    TooLong,
    /// Longer than the offers' part of its `stored_max`: it never has room for it.
    BeyondRoom,
    /// The chunks that came did not match the identity, again and again.
    Wrong,
    /// Its user forgot the payload before it had arrived.
    Forgotten,
}

impl Reason {
    pub(super) fn code(self) -> u8 {
        match self {
            Self::TooLong => 1,
            Self::BeyondRoom => 2,
            Self::Wrong => 3,
            Self::Forgotten => 4,
        }
    }

    pub(super) fn of(code: u16) -> Option<Self> {
        [Self::TooLong, Self::BeyondRoom, Self::Wrong, Self::Forgotten]
            .into_iter()
            .find(|reason| u16::from(reason.code()) == code)
    }
}

/// Why the configuration of [`super::Transfers`] is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("this host is {me}; hosts are 1 to {MAX_HOSTS}")]
    Me { me: u16 },
    #[error("chunks of {chunk_max} bytes; 1 to {CHUNK_MAX} fit a datagram")]
    ChunkMax { chunk_max: usize },
    #[error("payloads of {payload_max} bytes; in chunks of this size {max} are the most")]
    PayloadMax { payload_max: u64, max: u64 },
    #[error("wants_max is 0; it has to be 1 at least")]
    WantsMax,
    #[error("arriving_max is {arriving_max}; 1 to {ARRIVING_MAX} payloads may be under way at once")]
    ArrivingMax { arriving_max: usize },
}

/// Why there is no room for a payload. Nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RoomError {
    #[error("a payload of {len} bytes; at most {max} are taken")]
    TooLong { len: u64, max: u64 },
    #[error("a payload of {len} bytes, while {used} of {max} are in use; forget a payload first")]
    Full { len: u64, used: u64, max: u64 },
    #[error(
        "{PAYLOADS_MAX} payloads are stored, arriving, or missing and not polled; forget one, or call poll_missing"
    )]
    Payloads,
    #[error("{max} payloads are arriving; fetch again when one has arrived")]
    Arriving { max: usize },
}

/// Why a payload is not offered. Nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OfferError {
    #[error(transparent)]
    Room(#[from] RoomError),
    #[error("offer {oldest} still waits for answers; at most {OFFERS_MAX} offers may be made from that one on")]
    Unanswered { oldest: u64 },
}

/// Why a payload is not fetched. Nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    #[error(transparent)]
    Room(#[from] RoomError),
    #[error("host {host} cannot be asked; the others are 1 to {MAX_HOSTS}, without this host")]
    Host { host: HostId },
    #[error("host {host} has crashed; ask a live host")]
    Crashed { host: HostId },
}

/// Why a message is refused. Nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    #[error("{len} bytes; {what} has {want}")]
    Length { what: &'static str, len: usize, want: usize },
    #[error("version {version}; this program speaks 1")]
    Version { version: u8 },
    #[error("kind {kind}; 16 (offer), 17 (want), 18 (chunk), 19 (have), 20 (refuse) and 21 (missing) are known")]
    Kind { kind: u8 },
    #[error("{got} in the place of a reason; it has to be 0 in all messages but a refuse")]
    Reserved { got: u16 },
    #[error("reason {reason}; 1 (too long), 2 (beyond room), 3 (wrong) and 4 (forgotten) are known")]
    Reason { reason: u16 },
    #[error("offer {number}; offers are numbered from 1{}", last.map(|last| format!(", and {last} is the last of this host")).unwrap_or_default())]
    Number { number: u64, last: Option<u64> },
    #[error("from host {host}; the others are 1 to {MAX_HOSTS}, without this host")]
    Stranger { host: HostId },
    #[error("from host {host}, which has crashed; nothing is taken from it until it has joined again")]
    Crashed { host: HostId },
    #[error("a chunk of {identity}, which this host has not asked for")]
    Unasked { identity: Identity },
    #[error("{identity} from host {from}; host {asked} was asked")]
    NotAsked { identity: Identity, from: u16, asked: u16 },
    #[error(
        "chunk {index} of {identity}, which has {chunks} chunks, numbered from 0; do all hosts have the same chunk_max?"
    )]
    Index { identity: Identity, index: u32, chunks: u32 },
    #[error("chunk {index} of {identity}; only chunks before {asked} were asked for")]
    Early { identity: Identity, index: u32, asked: u32 },
    #[error("{len} bytes in chunk {index} of {identity}; it has {want}; do all hosts have the same chunk_max?")]
    ChunkLength { identity: Identity, index: u32, len: usize, want: usize },
    #[error(
        "{count} chunks wanted from {first} on of {identity}, which has {chunks} chunks, numbered from 0; do all hosts have the same chunk_max?"
    )]
    Range { identity: Identity, first: u32, count: u32, chunks: u32 },
}
