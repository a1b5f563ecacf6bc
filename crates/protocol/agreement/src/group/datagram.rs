// SPDX-License-Identifier: Apache-2.0
//! The prefix of every datagram of a group. Little-endian:
//!
//! ```text
//!  0 u64 the group's number
//!  8 u32 incarnation of the sender
//! 12 u32 incarnation of the receiver; 0 in a message of the protocol, which is for whichever incarnation is in the view
//! 16 u32 number of the sender's view; in a message of the protocol, the view whose members run that protocol
//! 20 u8  kind: 1 a message of the protocol, 2 of the group itself (`control`), 3 of a payload (`transfer`)
//! 21 3 bytes, 0
//! 24 the message
//! ```

use fide_types::{HostId, MAX_HOSTS};

use super::incarnations::RangesError;
use crate::{message::MessageError, transfer::TransferError, view::ViewError};

/// Bytes before the message.
pub const PREFIX_LEN: usize = 24;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Protocol,
    Control,
    Transfer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Prefix {
    pub(super) group: u64,
    pub(super) sender: u32,
    pub(super) receiver: u32,
    pub(super) view: u32,
    pub(super) kind: Kind,
}

/// Why a datagram was refused. Nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DatagramError {
    #[error("{len} bytes; a datagram has {PREFIX_LEN} and a message")]
    Length { len: usize },
    #[error("kind {kind}; known are 1 (protocol), 2 (group) and 3 (payload)")]
    Kind { kind: u8 },
    #[error("from group {got:016x}; this one is {want:016x}. Do all members have the same list and settings?")]
    OtherGroup { got: u64, want: u64 },
    #[error("host {host} may not be in this group; its hosts are 1 to {MAX_HOSTS} and in the list of members")]
    Stranger { host: HostId },
    #[error("from incarnation {got} of host {host}; incarnation {want} is up")]
    OtherIncarnation { host: HostId, got: u32, want: u32 },
    #[error("meant for incarnation {got} of this host, which is incarnation {want}")]
    NotMine { got: u32, want: u32 },
    #[error("of view {got}, while this member is in view {here}; it will be sent again")]
    OtherView { got: u32, here: u32 },
    #[error(transparent)]
    Message(#[from] MessageError),
    #[error(transparent)]
    Transfer(#[from] TransferError),
    #[error(transparent)]
    View(#[from] ViewError),
    #[error(transparent)]
    Ranges(#[from] RangesError),
    #[error("a control message of kind {kind} and {len} bytes; there is none")]
    Control { kind: u8, len: usize },
    #[error(
        "a state at position {position}, while {delivered} decisions are delivered here: it belongs to another group's log"
    )]
    Future { position: u64, delivered: u64 },
    #[error("this member was excluded or has left; it has to come back as another incarnation")]
    Stopped,
}

impl Prefix {
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.group.to_le_bytes());
        out.extend_from_slice(&self.sender.to_le_bytes());
        out.extend_from_slice(&self.receiver.to_le_bytes());
        out.extend_from_slice(&self.view.to_le_bytes());
        let kind = match self.kind {
            Kind::Protocol => 1,
            Kind::Control => 2,
            Kind::Transfer => 3,
        };
        out.extend_from_slice(&[kind, 0, 0, 0]);
    }

    pub(super) fn read(datagram: &[u8]) -> Result<(Self, &[u8]), DatagramError> {
        let wrong = DatagramError::Length { len: datagram.len() };
        let (prefix, message) = datagram.split_first_chunk::<PREFIX_LEN>().ok_or(wrong)?;
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| prefix[at + byte]));
        let kind = match prefix[20..] {
            [1, 0, 0, 0] => Kind::Protocol,
            [2, 0, 0, 0] => Kind::Control,
            [3, 0, 0, 0] => Kind::Transfer,
            _ => return Err(DatagramError::Kind { kind: prefix[20] }),
        };
        let group = u64::from(word(0)) | u64::from(word(4)) << 32;
        Ok((Self { group, sender: word(8), receiver: word(12), view: word(16), kind }, message))
    }

    /// Writes the receiver into a datagram.
    pub(super) fn address(datagram: &mut [u8], incarnation: u32) {
        datagram[12..16].copy_from_slice(&incarnation.to_le_bytes());
    }
}
