// SPDX-License-Identifier: Apache-2.0
//! Control messages between members, and hosts that want to be members. Little-endian, after the datagram's
//! prefix:
//!
//! ```text
//!  0 u8 kind
//!  1 join (1):     u64 position of the state that the sender has, u64::MAX for none
//!    base (2):     u64 position, identity of the state there
//!    welcome (3):  u64 position after which the decisions begin, u64 position of the last one before the view; identity of
//!                  those decisions; the view
//!    dead (4):     u64 places of the members that the sender knows to be dead; u8 1 if it asks for the receiver's, else 0
//!    over (5):     nothing
//!    present (6):  u32 ballot that is promised; u8 1 if the sender is the first process of its host, else 0
//!    begin (7):    u32 ballot; the view
//!    claim (8):    see `claim`
//!    out (9):      the view without the sender
//!    recorded (10): nothing
//!    higher (11):  u32 incarnation
//!    stored (12):  u64 position up to which the sender has stored the log; u8 1 if it asks for the receiver's, else 0
//!    told (13):    u64 position up to which decisions may be delivered
//!    claim (14):   a claim with several ranges, see `claim`; from version 2 on
//! ```

use fide_types::HostSet;

use super::{claim::Claim, datagram::DatagramError};
use crate::{transfer::Identity, view::View};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Control {
    /// "Let me in; I have the state at this position."
    Join { have: Option<u64> },
    /// "Begin with this state."
    Base { position: u64, state: Identity },
    /// "You are in: these decisions bring your state to where the view begins."
    Welcome { from: u64, start: u64, decisions: Identity, view: View },
    /// "The members at these places have crashed."
    Dead { places: HostSet, asks: bool },
    /// "That view is over, and you are not in the present one."
    Over,
    /// "I am in no group, and follow the founder of this ballot." `is_first`: no other process of the
    /// sender's host was ever in the group, or wanted to be.
    Present { ballot: u32, is_first: bool },
    /// "This is the first view of the group."
    Begin { ballot: u32, view: View },
    /// "These incarnations of mine are over, and this is what I kept of them."
    Claim(Claim),
    /// "This view without me was decided. Have you begun it?" Whoever has begun it answers `Over`.
    Out { view: View },
    /// "I am in no group and found none: there is a group on my record."
    Recorded,
    /// "All your incarnations up to this one are dead here: come as a higher one."
    Higher { dead: u32 },
    /// "I have the log on disk up to this position." `asks`: "and you?"
    Stored { position: u64, asks: bool },
    /// "Enough members have stored the log up to this position."
    Told { position: u64 },
}

impl Control {
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Join { have } => {
                out.push(1);
                out.extend_from_slice(&have.unwrap_or(u64::MAX).to_le_bytes());
            }
            Self::Base { position, state } => {
                out.push(2);
                out.extend_from_slice(&position.to_le_bytes());
                state.write(out);
            }
            Self::Welcome { from, start, decisions, view } => {
                out.push(3);
                out.extend_from_slice(&from.to_le_bytes());
                out.extend_from_slice(&start.to_le_bytes());
                decisions.write(out);
                view.write(out);
            }
            Self::Dead { places, asks } => {
                out.push(4);
                out.extend_from_slice(&places.0.to_le_bytes());
                out.push(u8::from(*asks));
            }
            Self::Over => out.push(5),
            Self::Present { ballot, is_first } => {
                out.push(6);
                out.extend_from_slice(&ballot.to_le_bytes());
                out.push(u8::from(*is_first));
            }
            Self::Begin { ballot, view } => {
                out.push(7);
                out.extend_from_slice(&ballot.to_le_bytes());
                view.write(out);
            }
            Self::Claim(claim) => {
                out.push(if claim.earlier.is_empty() { 8 } else { 14 });
                claim.write(out);
            }
            Self::Out { view } => {
                out.push(9);
                view.write(out);
            }
            Self::Recorded => out.push(10),
            Self::Higher { dead } => {
                out.push(11);
                out.extend_from_slice(&dead.to_le_bytes());
            }
            Self::Stored { position, asks } => {
                out.push(12);
                out.extend_from_slice(&position.to_le_bytes());
                out.push(u8::from(*asks));
            }
            Self::Told { position } => {
                out.push(13);
                out.extend_from_slice(&position.to_le_bytes());
            }
        }
    }

    pub(super) fn read(bytes: &[u8]) -> Result<Self, DatagramError> {
        let (&kind, content) = bytes.split_first().ok_or(DatagramError::Control { kind: 0, len: 0 })?;
        let wrong = DatagramError::Control { kind, len: bytes.len() };
        let number = |content: &[u8]| Some(u64::from_le_bytes(*content.first_chunk()?));
        let ballot = |content: &[u8]| Some(u32::from_le_bytes(*content.first_chunk()?));
        let identity = |content: &[u8]| Identity::read(content).ok();
        let read = || match kind {
            1 if content.len() == 8 => Some(Self::Join { have: number(content).filter(|have| *have != u64::MAX) }),
            2 => Some(Self::Base { position: number(content)?, state: identity(content.get(8..)?)? }),
            4 if content.len() == 9 && content[8] < 2 => {
                Some(Self::Dead { places: HostSet(number(content)?), asks: content[8] == 1 })
            }
            5 if content.is_empty() => Some(Self::Over),
            6 if content.len() == 5 && content[4] < 2 => {
                Some(Self::Present { ballot: ballot(content)?, is_first: content[4] == 1 })
            }
            10 if content.is_empty() => Some(Self::Recorded),
            12 if content.len() == 9 && content[8] < 2 => {
                Some(Self::Stored { position: number(content)?, asks: content[8] == 1 })
            }
            13 if content.len() == 8 => Some(Self::Told { position: number(content)? }),
            11 if content.len() == 4 => Some(Self::Higher { dead: ballot(content)? }),
            _ => None,
        };
        if kind == 7 {
            let (number, view) = content.split_at_checked(4).ok_or(wrong.clone())?;
            return Ok(Self::Begin { ballot: ballot(number).ok_or(wrong)?, view: View::read(view)? });
        }
        if kind == 9 {
            return Ok(Self::Out { view: View::read(content)? });
        }
        if kind == 8 {
            return Ok(Self::Claim(Claim::read(content).ok_or(wrong)??));
        }
        if kind == 14 {
            return Ok(Self::Claim(Claim::read_with_earlier(content).ok_or(wrong)??));
        }
        if kind != 3 {
            return read().ok_or(wrong);
        }
        let (numbers, rest) = content.split_at_checked(16).ok_or(wrong.clone())?;
        let (decisions, view) = rest.split_at_checked(Identity::LEN).ok_or(wrong.clone())?;
        let (from, start) = number(numbers).zip(number(&numbers[8..])).ok_or(wrong.clone())?;
        let decisions = identity(decisions).ok_or(wrong)?;
        Ok(Self::Welcome { from, start, decisions, view: View::read(view)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        group::{
            Incarnations, RANGES_MAX,
            claim::{GaveUp, Membership},
        },
        view::ViewMember,
    };
    use proptest::prelude::*;

    /// A few ranges, and an incarnation above them.
    fn any_incarnations() -> impl Strategy<Value = (Incarnations, u32)> {
        prop::collection::vec((0u32..1 << 20, 0u32..1 << 20), 0..=RANGES_MAX).prop_map(|steps| {
            let mut last = 0;
            let ranges = steps.into_iter().map(|(gap, more)| {
                let first = last + 2 + gap;
                last = first + more;
                (first, last)
            });
            let own = Incarnations::from_ranges(ranges).unwrap();
            (own, last + 1)
        })
    }

    fn any_control() -> impl Strategy<Value = Control> {
        let identity = prop::collection::vec(any::<u8>(), 0..40).prop_map(|bytes| Identity::of(&bytes));
        let view = (1u32.., 1u16..=64, 1u32..)
            .prop_map(|(number, host, incarnation)| View::new(number, &[ViewMember { host, incarnation }]).unwrap());
        prop_oneof![
            prop::option::of(0..u64::MAX).prop_map(|have| Control::Join { have }),
            (any::<u64>(), identity.clone()).prop_map(|(position, state)| Control::Base { position, state }),
            (any::<u64>(), any::<u64>(), identity, view.clone())
                .prop_map(|(from, start, decisions, view)| Control::Welcome { from, start, decisions, view }),
            (any::<u64>(), any::<bool>()).prop_map(|(places, asks)| Control::Dead { places: HostSet(places), asks }),
            Just(Control::Over),
            Just(Control::Recorded),
            any::<u32>().prop_map(|dead| Control::Higher { dead }),
            any::<u64>().prop_map(|position| Control::Told { position }),
            any::<(u64, bool)>().prop_map(|(position, asks)| Control::Stored { position, asks }),
            any::<(u32, bool)>().prop_map(|(ballot, is_first)| Control::Present { ballot, is_first }),
            view.clone().prop_map(|view| Control::Out { view }),
            (any::<u32>(), view.clone()).prop_map(|(ballot, view)| Control::Begin { ballot, view }),
            (
                any_incarnations(),
                any::<u32>(),
                prop::option::of((1u32.., any::<u32>(), any::<u64>())),
                prop::option::of((1u32.., prop::option::of(0..u64::MAX), view))
            )
                .prop_map(|((own, incarnation), ballot, gave_up, membership)| {
                    let gave_up =
                        gave_up.map(|(number, incarnation, dead)| GaveUp { number, incarnation, dead: HostSet(dead) });
                    let membership = membership.map(|(incarnation, position, view)| Membership {
                        incarnation,
                        position,
                        ballot,
                        view,
                    });
                    Control::Claim(Claim::new(&own, incarnation, gave_up, membership))
                }),
        ]
    }

    proptest! {
        #[test]
        fn written_control_message_reads_back(control in any_control()) {
            let mut bytes = Vec::new();
            control.write(&mut bytes);
            prop_assert_eq!(Control::read(&bytes), Ok(control));
            bytes.pop();
            prop_assert!(Control::read(&bytes).is_err());
        }

        #[test]
        fn any_bytes_are_a_control_message_or_refused(kind in 0u8..15, bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            let bytes: Vec<u8> = std::iter::once(kind).chain(bytes).collect();
            if let Ok(control) = Control::read(&bytes) {
                let mut again = Vec::new();
                control.write(&mut again);
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
