// SPDX-License-Identifier: Apache-2.0
//! Messages between a program and the monitor of its host: each is one record of a Unix socket (`SOCK_SEQPACKET`).
//!
//! | message | bytes | descriptors |
//! |---|---|---|
//! | Ask, to the monitor | version 1, kind 1, question 4 | the socket |
//! | Cancel, to the monitor | version 1, kind 1, question 4 | |
//! | Paired | version 1, kind 1, question 4, 1 if it asked first | the memory |
//! | Refused | version 1, kind 1, question 4, reason 1 | |
//!
//! Numbers are big-endian.

use std::{
    ops::Deref,
    os::fd::{AsFd, OwnedFd},
};

use fide_sys::seqpacket::{self, ReceiveError, Wait};

use super::Refused;

/// Version of these messages.
pub const VERSION: u8 = 2;
/// Bytes of the longest one.
pub const LONGEST: usize = 7;
/// Descriptors of one message at most.
pub const FDS_MAX: usize = 1;

/// To the monitor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    Ask { id: u32 },
    Cancel { id: u32 },
}

/// From the monitor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Paired { id: u32, is_first: bool },
    Refused { id: u32, why: Refused },
}

/// What came is no message of this protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error(
        "a message of version {0}, and this is version {VERSION}: run the same release of Fide in the program and as the monitor"
    )]
    Version(u8),
    #[error("a message of {len} bytes that begins with {kind:?}, which is none of this protocol")]
    Message { kind: Option<u8>, len: usize },
}

const ASK: u8 = 1;
const CANCEL: u8 = 2;
const PAIRED: u8 = 3;
const REFUSED: u8 = 4;

/// Kind, question, and what follows.
fn read(bytes: &[u8]) -> Result<(u8, u32, &[u8]), Malformed> {
    match bytes {
        [VERSION, kind, rest @ ..] => match rest.split_first_chunk() {
            Some((id, rest)) => Ok((*kind, u32::from_be_bytes(*id), rest)),
            None => Err(Malformed::Message { kind: Some(*kind), len: bytes.len() }),
        },
        [version, _, ..] => Err(Malformed::Version(*version)),
        _ => Err(Malformed::Message { kind: None, len: bytes.len() }),
    }
}

fn write(kind: u8, id: u32, rest: &[u8]) -> Written {
    let mut bytes = [0; LONGEST];
    bytes[..2].copy_from_slice(&[VERSION, kind]);
    bytes[2..6].copy_from_slice(&id.to_be_bytes());
    bytes[6..6 + rest.len()].copy_from_slice(rest);
    Written { bytes, len: 6 + rest.len() }
}

/// The bytes of a message.
#[derive(Debug, Clone, Copy)]
pub struct Written {
    bytes: [u8; LONGEST],
    len: usize,
}

impl Deref for Written {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Request {
    /// Reads a message.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        match read(bytes)? {
            (ASK, id, []) => Ok(Self::Ask { id }),
            (CANCEL, id, []) => Ok(Self::Cancel { id }),
            (kind, ..) => Err(Malformed::Message { kind: Some(kind), len: bytes.len() }),
        }
    }

    /// Its bytes.
    #[must_use]
    pub fn write(self) -> Written {
        match self {
            Self::Ask { id } => write(ASK, id, &[]),
            Self::Cancel { id } => write(CANCEL, id, &[]),
        }
    }
}

impl Answer {
    /// Reads a message.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let malformed = |kind| Malformed::Message { kind: Some(kind), len: bytes.len() };
        match read(bytes)? {
            (PAIRED, id, [is_first @ 0..=1]) => Ok(Self::Paired { id, is_first: *is_first == 1 }),
            (REFUSED, id, [why]) => Ok(Self::Refused { id, why: Refused::of(*why).ok_or(malformed(REFUSED))? }),
            (kind, ..) => Err(malformed(kind)),
        }
    }

    /// Its bytes.
    #[must_use]
    pub fn write(self) -> Written {
        match self {
            Self::Paired { id, is_first } => write(PAIRED, id, &[is_first.into()]),
            Self::Refused { id, why } => write(REFUSED, id, &[why as u8]),
        }
    }
}

/// A message that has come. Of one that is too long, a byte more than the longest has.
#[derive(Debug)]
pub struct Received {
    bytes: [u8; LONGEST + 1],
    len: usize,
    /// Those that came with it; none if this process has too many files open for all of them.
    pub fds: Vec<OwnedFd>,
}

impl Received {
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Waits for a message, with `fds_max` descriptors at most. None: the other end has closed.
///
/// # Errors
/// As [`seqpacket::receive`].
pub fn receive(socket: impl AsFd, fds_max: usize) -> Result<Option<Received>, ReceiveError> {
    let mut bytes = [0; LONGEST + 1];
    let (len, fds) = match seqpacket::receive(socket, &mut bytes, fds_max, Wait::Forever) {
        Ok(seqpacket::Received::Message(len, fds)) => (len, fds),
        Ok(seqpacket::Received::Nothing | seqpacket::Received::End) => return Ok(None),
        // It begins with its version, which says more.
        Err(ReceiveError::TooLong { max }) => (max, Vec::new()),
        Err(ReceiveError::Lost { len, .. }) => (len, Vec::new()),
        Err(why) => return Err(why),
    };
    Ok(Some(Received { bytes, len, fds }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_are_read_as_they_are_written() {
        for request in [Request::Ask { id: 0x0102_0304 }, Request::Cancel { id: u32::MAX }] {
            let bytes = request.write();
            assert_eq!(Request::read(&bytes), Ok(request));
            assert!(Answer::read(&bytes).is_err());
        }
        for answer in [
            Answer::Paired { id: 7, is_first: true },
            Answer::Paired { id: 7, is_first: false },
            Answer::Refused { id: 9, why: Refused::Full },
        ] {
            let bytes = answer.write();
            assert_eq!(Answer::read(&bytes), Ok(answer));
            assert!(Request::read(&bytes).is_err());
        }
        assert_eq!(Request::read(&[1, ASK, 0, 0, 0, 1]), Err(Malformed::Version(1)));
    }

    proptest! {
        #[test]
        fn whatever_comes_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..=LONGEST + 1)) {
            if let Ok(request) = Request::read(&bytes) {
                prop_assert_eq!(&*request.write(), &bytes[..]);
            }
            if let Ok(answer) = Answer::read(&bytes) {
                prop_assert_eq!(&*answer.write(), &bytes[..]);
            }
        }
    }
}
