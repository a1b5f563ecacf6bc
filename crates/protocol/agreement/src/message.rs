// SPDX-License-Identifier: Apache-2.0
//! Messages between members. Little-endian:
//!
//! ```text
//!  0 u8  kind: 1 propose, 2 ack, 3 decide, 4 delivered, 5 chosen, 6 report, 7 report that asks for the receiver's, 8 solicit,
//!         9 range of acks, 10 range of chosens
//!  1 u8  version, 1
//!  2 u16 round: the member whose proposal it is about; 0 in a delivered
//!  4 u64 instance
//! 12 u32 len, then len bytes. In a propose and a decide: the value. In a report: a u64, the set of dead members. In a range:
//!         a u64, the last instance. Otherwise none.
//! ```

use fide_types::HostSet;

/// Bytes before the value.
pub const HEADER_LEN: usize = 16;
const VERSION: u8 = 1;

/// One message. `round` is the member that made the proposal: it names the round, as each leader has one
/// round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Message<'a> {
    /// "Adopt this value" (Alg. 3, lines 12 and 29).
    Propose { instance: u64, round: u16, value: &'a [u8] },
    /// "I have adopted your value" (line 17).
    Ack { instance: u64, round: u16 },
    /// An ack for each instance from `instance` to `last`, which is greater.
    AckRange { instance: u64, last: u64, round: u16 },
    /// "All have adopted this value" (line 21; Alg. 2, lines 6 and 16).
    Decide { instance: u64, round: u16, value: &'a [u8] },
    /// "All have adopted that round's value": a decide without the value, for members that have acknowledged
    /// it.
    Chosen { instance: u64, round: u16 },
    /// A chosen for each instance from `instance` to `last`, which is greater.
    ChosenRange { instance: u64, last: u64, round: u16 },
    /// "I have delivered all decisions up to this one": they need not be sent again. Only over links that
    /// lose messages.
    Delivered { instance: u64 },
    /// "Of member `round`, which is dead, I store the messages up to `instance`, and take no more messages
    /// from `dead`." Survivors exchange reports before they deliver the crash ([`crate::fcurb`]). `asks`: the
    /// receiver is to report too.
    Report { instance: u64, round: u16, dead: HostSet, asks: bool },
    /// "I lead, and need your proposal." Only over links that lose messages.
    Solicit { instance: u64, round: u16 },
}

/// Why a message is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    #[error("{len} bytes; a message has {HEADER_LEN} and its value")]
    Length { len: usize },
    #[error("version {version}; this program speaks {VERSION}")]
    Version { version: u8 },
    #[error("kind {kind}; known are 1 (propose) to 10 (range of chosens)")]
    Kind { kind: u8 },
    #[error("member {member} is not in this group; do all members have the same list?")]
    Stranger { member: u16 },
    #[error("a proposal of round {round} from member {from}: only member {round} proposes in that round")]
    Impostor { from: u16, round: u16 },
    #[error("instance {instance}, while {delivered} are delivered here: nobody can be that far ahead")]
    Future { instance: u64, delivered: u64 },
    #[error(
        "a broadcast of member {from} after its crash was reported: heartbeats and verdicts are handed over in the wrong order"
    )]
    AfterCrash { from: u16 },
    #[error("a message that this protocol does not have; do all members run the same protocol?")]
    NotOfProtocol,
    #[error("instances {instance} to {last}; the last has to be greater, and by less than the number of slots")]
    Range { instance: u64, last: u64 },
    #[error("a value of {len} bytes; the members' limit is {max}")]
    TooLong { len: usize, max: usize },
}

impl<'a> Message<'a> {
    #[must_use]
    pub fn instance(&self) -> u64 {
        match *self {
            Self::Propose { instance, .. }
            | Self::Ack { instance, .. }
            | Self::AckRange { instance, .. }
            | Self::ChosenRange { instance, .. }
            | Self::Decide { instance, .. }
            | Self::Chosen { instance, .. }
            | Self::Report { instance, .. }
            | Self::Solicit { instance, .. }
            | Self::Delivered { instance } => instance,
        }
    }

    /// The last instance that the message is about.
    #[must_use]
    pub fn last(&self) -> u64 {
        match *self {
            Self::AckRange { last, .. } | Self::ChosenRange { last, .. } => last,
            _ => self.instance(),
        }
    }

    /// None in a delivered.
    #[must_use]
    pub fn round(&self) -> Option<u16> {
        match *self {
            Self::Propose { round, .. }
            | Self::Ack { round, .. }
            | Self::AckRange { round, .. }
            | Self::ChosenRange { round, .. }
            | Self::Decide { round, .. }
            | Self::Chosen { round, .. }
            | Self::Report { round, .. }
            | Self::Solicit { round, .. } => Some(round),
            Self::Delivered { .. } => None,
        }
    }

    /// Empty where the message has none.
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
            Self::Delivered { .. } => 4,
            Self::Chosen { .. } => 5,
            Self::Report { asks: false, .. } => 6,
            Self::Report { .. } => 7,
            Self::Solicit { .. } => 8,
            Self::AckRange { .. } => 9,
            Self::ChosenRange { .. } => 10,
        };
        let number;
        let rest = match self {
            Self::Report { dead: HostSet(rest), .. }
            | Self::AckRange { last: rest, .. }
            | Self::ChosenRange { last: rest, .. } => {
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
            number()
                .and_then(|last| if last > instance { Ok(last) } else { Err(MessageError::Range { instance, last }) })
        };
        match header[0] {
            1 => Ok(Self::Propose { instance, round, value }),
            2 | 4 | 5 | 8 if !value.is_empty() => Err(wrong),
            2 => Ok(Self::Ack { instance, round }),
            4 if round != 0 => Err(MessageError::Stranger { member: round }),
            4 => Ok(Self::Delivered { instance }),
            3 => Ok(Self::Decide { instance, round, value }),
            5 => Ok(Self::Chosen { instance, round }),
            6 | 7 => {
                let dead = HostSet(number()?);
                Ok(Self::Report { instance, round, dead, asks: header[0] == 7 })
            }
            8 => Ok(Self::Solicit { instance, round }),
            9 => Ok(Self::AckRange { instance, last: last()?, round }),
            10 => Ok(Self::ChosenRange { instance, last: last()?, round }),
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
        fn written_message_reads_back(kind in 0..9, instance in 0..u64::MAX, round: u16, dead: u64, asks: bool, value in prop::collection::vec(any::<u8>(), 0..100)) {
            let message = match kind {
                0 => Message::Propose { instance, round, value: &value },
                1 => Message::Ack { instance, round },
                2 => Message::Delivered { instance },
                3 => Message::Chosen { instance, round },
                4 => Message::Report { instance, round, dead: HostSet(dead), asks },
                5 => Message::Solicit { instance, round },
                6 => Message::AckRange { instance, last: instance + 1, round },
                7 => Message::ChosenRange { instance, last: u64::MAX, round },
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
