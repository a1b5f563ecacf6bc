// SPDX-License-Identifier: Apache-2.0
//! Messages about payloads. Little-endian:
//!
//! ```text
//!  0 u8  kind: 16 offer, 17 want, 18 chunk, 19 have, 20 refuse, 21 missing; different from the kinds of `crate::message`,
//!        as both may travel over one link
//!  1 u8  version, 1
//!  2 u16 in a refuse the reason: 1 too long, 2 beyond room, 3 wrong, 4 forgotten; else 0
//!  4 u64 bytes of the payload         } its identity
//! 12 [u8; 32] BLAKE3 of the payload   }
//! 44 offer, have, refuse: u64 number of the offer, from 1
//!    want: u32 first chunk, from 0; u32 number of chunks, from 1
//!    chunk: u32 index, from 0; then its bytes, to the end of the message
//!    missing: nothing
//! ```

use std::fmt;

use super::error::{Reason, TransferError};

/// Bytes of a message before those of a chunk.
pub const HEADER_LEN: usize = IDENTIFIED_LEN + 4;
/// Bytes up to the end of the identity.
const IDENTIFIED_LEN: usize = 4 + Identity::LEN;
const NUMBERED_LEN: usize = IDENTIFIED_LEN + 8;
const VERSION: u8 = 1;

/// Identifies a payload.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// Bytes of the payload.
    pub len: u64,
    /// Their BLAKE3.
    pub hash: [u8; 32],
}

impl Identity {
    /// Bytes of an identity.
    pub const LEN: usize = 40;

    /// The identity of a payload. Hashes it, which takes some hundred microseconds per MiB.
    #[must_use]
    pub fn of(payload: &[u8]) -> Self {
        Self { len: payload.len() as u64, hash: *blake3::hash(payload).as_bytes() }
    }

    /// Appends its bytes: the length, little-endian, and the hash.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.len.to_le_bytes());
        out.extend_from_slice(&self.hash);
    }

    /// Reads what [`Identity::write`] wrote.
    ///
    /// # Errors
    /// [`TransferError::Length`].
    pub fn read(bytes: &[u8]) -> Result<Self, TransferError> {
        let wrong = TransferError::Length { what: "an identity", len: bytes.len(), want: Self::LEN };
        let bytes: &[u8; Self::LEN] = bytes.try_into().map_err(|_| wrong)?;
        let (len, hash) = bytes.split_at(8);
        Ok(Self { len: u64::from_le_bytes(len.try_into().expect("8 bytes")), hash: hash.try_into().expect("32 bytes") })
    }
}

/// The first bytes of the hash, and the length.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hash[..6].iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, " ({} bytes)", self.len)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One message. `number` is that of the offer: it distinguishes answers to this offer from answers to a
/// former offer of the same payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TransferMessage<'a> {
    /// "I store this payload; fetch it."
    Offer {
        identity: Identity,
        number: u64,
    },
    /// "Send me these chunks."
    Want {
        identity: Identity,
        first: u32,
        count: u32,
    },
    Chunk {
        identity: Identity,
        index: u32,
        bytes: &'a [u8],
    },
    /// "I store the payload that you have offered."
    Have {
        identity: Identity,
        number: u64,
    },
    /// "I will not fetch it."
    Refuse {
        identity: Identity,
        number: u64,
        reason: Reason,
    },
    /// "I do not store the payload that you want."
    Missing {
        identity: Identity,
    },
}

impl<'a> TransferMessage<'a> {
    /// Appends its bytes.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let (kind, reason, identity) = match self {
            Self::Offer { identity, .. } => (16, 0, identity),
            Self::Want { identity, .. } => (17, 0, identity),
            Self::Chunk { identity, .. } => (18, 0, identity),
            Self::Have { identity, .. } => (19, 0, identity),
            Self::Refuse { identity, reason, .. } => (20, reason.code(), identity),
            Self::Missing { identity } => (21, 0, identity),
        };
        out.extend_from_slice(&[kind, VERSION]);
        out.extend_from_slice(&u16::from(reason).to_le_bytes());
        identity.write(out);
        match *self {
            Self::Offer { number, .. } | Self::Have { number, .. } | Self::Refuse { number, .. } => {
                out.extend_from_slice(&number.to_le_bytes());
            }
            Self::Want { first, count, .. } => {
                out.extend_from_slice(&first.to_le_bytes());
                out.extend_from_slice(&count.to_le_bytes());
            }
            Self::Chunk { index, bytes, .. } => {
                out.extend_from_slice(&index.to_le_bytes());
                out.extend_from_slice(bytes);
            }
            Self::Missing { .. } => {}
        }
    }

    /// Reads what [`Message::write`] wrote.
    ///
    /// # Errors
    /// [`TransferError`]: those that can be found without a host's state.
    pub(super) fn read(message: &'a [u8]) -> Result<Self, TransferError> {
        let length = |what, want| TransferError::Length { what, len: message.len(), want };
        let (header, rest) =
            message.split_first_chunk::<IDENTIFIED_LEN>().ok_or(length("the shortest message", IDENTIFIED_LEN))?;
        if header[1] != VERSION {
            return Err(TransferError::Version { version: header[1] });
        }
        let kind = header[0];
        let got = u16::from_le_bytes([header[2], header[3]]);
        if kind != 20 && got != 0 && (16..=21).contains(&kind) {
            return Err(TransferError::Reserved { got });
        }
        let identity = Identity::read(&header[4..]).expect("40 bytes");
        let number = |what| match rest.try_into().map(u64::from_le_bytes) {
            Ok(0) => Err(TransferError::Number { number: 0, last: None }),
            Ok(number) => Ok(number),
            Err(_) => Err(length(what, NUMBERED_LEN)),
        };
        match kind {
            16 => Ok(Self::Offer { identity, number: number("an offer")? }),
            17 => {
                let [a, b, c, d, e, f, g, h] = rest.try_into().map_err(|_| length("a want", NUMBERED_LEN))?;
                let (first, count) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
                Ok(Self::Want { identity, first, count })
            }
            18 => {
                let (index, bytes) = rest.split_first_chunk().ok_or(length("the shortest chunk", HEADER_LEN))?;
                Ok(Self::Chunk { identity, index: u32::from_le_bytes(*index), bytes })
            }
            19 => Ok(Self::Have { identity, number: number("a have")? }),
            20 => {
                let number = number("a refuse")?;
                let reason = Reason::of(got).ok_or(TransferError::Reason { reason: got })?;
                Ok(Self::Refuse { identity, number, reason })
            }
            21 if rest.is_empty() => Ok(Self::Missing { identity }),
            21 => Err(length("a missing", IDENTIFIED_LEN)),
            kind => Err(TransferError::Kind { kind }),
        }
    }
}
