// SPDX-License-Identifier: Apache-2.0
//! Messages between members. Little-endian:
//!
//! ```text
//!  0 u8  kind: 1 propose, 2 ack, 3 decide, 4 told, 5 chosen, 6 held, 7 held that asks, 8 lacking, 9 acks, 10 all chosen
//!  1 u8  version, 1
//!  2 u16 round: the member whose proposal it is; 0 in a told
//!  4 u64 instance
//! 12 u32 len, then len bytes: the value of a propose and a decide; a u64 in a held, the set of the dead, and in
//!         an acks and an all chosen, the last instance; else none
//! ```

use fide_types::HostSet;

/// Bytes before the value.
pub const HEADER_LEN: usize = 16;
const VERSION: u8 = 1;

/// One message. `round` is the member that proposed: it names the round, as every leader has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Message<'a> {
    /// "Adopt this" (Alg. 3, lines 12 and 29).
    Propose { instance: u64, round: u16, value: &'a [u8] },
    /// "I have adopted yours" (line 17).
    Ack { instance: u64, round: u16 },
    /// As many acks as there are instances from `instance` to `last`, which is greater.
    Acks { instance: u64, last: u64, round: u16 },
    /// "All have" (line 21; Alg. 2, lines 6 and 16).
    Decide { instance: u64, round: u16, value: &'a [u8] },
    /// "All have": a decide for those who have acknowledged that round's proposal, and so have its value.
    Chosen { instance: u64, round: u16 },
    /// As many chosens as there are instances from `instance` to `last`, which is greater.
    AllChosen { instance: u64, last: u64, round: u16 },
    /// "I have told my user all up to this one": need not be sent again. Only where links lose messages.
    Told { instance: u64 },
    /// "Of that member, which is dead, I have all up to this one, and take nothing more of these": before the word of a crash
    /// counts ([`crate::fcurb`]). `asks`: "what have you?"
    Held { instance: u64, round: u16, dead: HostSet, asks: bool },
    /// "I lead, and lack what you have to say." Only where links lose messages.
    Lacking { instance: u64, round: u16 },
}

/// Why a message is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    #[error("{len} bytes; a message has {HEADER_LEN} and its value")]
    Length { len: usize },
    #[error("version {version}; this program speaks {VERSION}")]
    Version { version: u8 },
    #[error("kind {kind}; 1 (propose) to 10 (all chosen) are known")]
    Kind { kind: u8 },
    #[error("member {member} is none of this group; do all members have the same list?")]
    Stranger { member: u16 },
    #[error("a proposal of round {round} from member {from}: only {round} itself proposes in it")]
    Impostor { from: u16, round: u16 },
    #[error("instance {instance}, while {delivered} are decided here: nobody can be that far ahead")]
    Future { instance: u64, delivered: u64 },
    #[error(
        "a broadcast of member {from} after the word of its crash: heartbeats and verdicts are told in the wrong order"
    )]
    AfterCrash { from: u16 },
    #[error("a message that this protocol does not have; do all members run the same?")]
    NotOfProtocol,
    #[error("instances {instance} to {last}; the last has to be greater, and by less than there are places for")]
    Run { instance: u64, last: u64 },
    #[error("a value of {len} bytes; the members' limit is {max}")]
    TooLong { len: usize, max: usize },
}

impl<'a> Message<'a> {
    #[must_use]
    pub fn instance(&self) -> u64 {
        match *self {
            Self::Propose { instance, .. }
            | Self::Ack { instance, .. }
            | Self::Acks { instance, .. }
            | Self::AllChosen { instance, .. }
            | Self::Decide { instance, .. }
            | Self::Chosen { instance, .. }
            | Self::Held { instance, .. }
            | Self::Lacking { instance, .. }
            | Self::Told { instance } => instance,
        }
    }

    /// The last of the instances that it is about.
    #[must_use]
    pub fn last(&self) -> u64 {
        match *self {
            Self::Acks { last, .. } | Self::AllChosen { last, .. } => last,
            _ => self.instance(),
        }
    }

    /// None in a told.
    #[must_use]
    pub fn round(&self) -> Option<u16> {
        match *self {
            Self::Propose { round, .. }
            | Self::Ack { round, .. }
            | Self::Acks { round, .. }
            | Self::AllChosen { round, .. }
            | Self::Decide { round, .. }
            | Self::Chosen { round, .. }
            | Self::Held { round, .. }
            | Self::Lacking { round, .. } => Some(round),
            Self::Told { .. } => None,
        }
    }

    /// Empty where there is none.
    #[must_use]
    pub fn value(&self) -> &'a [u8] {
        match *self {
            Self::Propose { value, .. } | Self::Decide { value, .. } => value,
            _ => &[],
        }
    }

    /// Appends its bytes.
    ///
    /// # Panics
    /// If the value is longer than 4 GiB.
    pub fn write(&self, out: &mut Vec<u8>) {
        let kind = match self {
            Self::Propose { .. } => 1,
            Self::Ack { .. } => 2,
            Self::Decide { .. } => 3,
            Self::Told { .. } => 4,
            Self::Chosen { .. } => 5,
            Self::Held { asks: false, .. } => 6,
            Self::Held { .. } => 7,
            Self::Lacking { .. } => 8,
            Self::Acks { .. } => 9,
            Self::AllChosen { .. } => 10,
        };
        let number;
        let rest = match self {
            Self::Held { dead: HostSet(rest), .. }
            | Self::Acks { last: rest, .. }
            | Self::AllChosen { last: rest, .. } => {
                number = rest.to_le_bytes();
                &number[..]
            }
            _ => self.value(),
        };
        out.extend_from_slice(&[kind, VERSION]);
        out.extend_from_slice(&self.round().unwrap_or(0).to_le_bytes());
        out.extend_from_slice(&self.instance().to_le_bytes());
        out.extend_from_slice(&u32::try_from(rest.len()).expect("a value below 4 GiB").to_le_bytes());
        out.extend_from_slice(rest);
    }

    /// Reads what [`Message::write`] wrote.
    ///
    /// # Errors
    /// [`MessageError`].
    pub fn read(bytes: &'a [u8]) -> Result<Self, MessageError> {
        let wrong = MessageError::Length { len: bytes.len() };
        let (header, value) = bytes.split_at_checked(HEADER_LEN).ok_or(wrong)?;
        if header[1] != VERSION {
            return Err(MessageError::Version { version: header[1] });
        }
        let round = u16::from_le_bytes([header[2], header[3]]);
        let instance = u64::from_le_bytes(header[4..12].try_into().expect("8 bytes"));
        let len = u32::from_le_bytes(header[12..16].try_into().expect("4 bytes"));
        if usize::try_from(len) != Ok(value.len()) {
            return Err(wrong);
        }
        let number = || value.try_into().map(u64::from_le_bytes).map_err(|_| wrong);
        let last = || {
            number().and_then(|last| if last > instance { Ok(last) } else { Err(MessageError::Run { instance, last }) })
        };
        match header[0] {
            1 => Ok(Self::Propose { instance, round, value }),
            2 | 4 | 5 | 8 if !value.is_empty() => Err(wrong),
            2 => Ok(Self::Ack { instance, round }),
            4 if round != 0 => Err(MessageError::Stranger { member: round }),
            4 => Ok(Self::Told { instance }),
            3 => Ok(Self::Decide { instance, round, value }),
            5 => Ok(Self::Chosen { instance, round }),
            6 | 7 => {
                let dead = HostSet(number()?);
                Ok(Self::Held { instance, round, dead, asks: header[0] == 7 })
            }
            8 => Ok(Self::Lacking { instance, round }),
            9 => Ok(Self::Acks { instance, last: last()?, round }),
            10 => Ok(Self::AllChosen { instance, last: last()?, round }),
            kind => Err(MessageError::Kind { kind }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(kind in 0..9, instance in 0..u64::MAX, round: u16, dead: u64, asks: bool, value in prop::collection::vec(any::<u8>(), 0..100)) {
            let message = match kind {
                0 => Message::Propose { instance, round, value: &value },
                1 => Message::Ack { instance, round },
                2 => Message::Told { instance },
                3 => Message::Chosen { instance, round },
                4 => Message::Held { instance, round, dead: HostSet(dead), asks },
                5 => Message::Lacking { instance, round },
                6 => Message::Acks { instance, last: instance + 1, round },
                7 => Message::AllChosen { instance, last: u64::MAX, round },
                _ => Message::Decide { instance, round, value: &value },
            };
            let mut bytes = Vec::new();
            message.write(&mut bytes);
            prop_assert_eq!(Message::read(&bytes), Ok(message));
            bytes.pop();
            prop_assert_eq!(Message::read(&bytes), Err(MessageError::Length { len: bytes.len() }));
        }

        #[test]
        fn any_bytes_are_a_message_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(message) = Message::read(&bytes) {
                let mut again = Vec::new();
                message.write(&mut again);
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
