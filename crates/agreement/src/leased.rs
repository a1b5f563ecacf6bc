// SPDX-License-Identifier: Apache-2.0
//! A protocol under a detector that is right only within leases (`trust = "lease"`).
//!
//! The detector says who has crashed once nobody acts on that host's behalf any more: views are agreed, leases have run out. What is
//! left to do here:
//!
//! - A member whose own lease has run out tells its user no decision and answers no question: the others may have gone on.
//!   Its protocol goes on taking messages, which harms nobody: it decides nothing that the others have not acknowledged.
//! - One that is excluded has crashed, as far as the group goes. It stops, and starts again as another incarnation.
//! - A group is of incarnations, not of hosts. What another incarnation sends, or what is told of it, changes nothing.
//!
//! A message travels with the incarnation of its sender:
//!
//! ```text
//!  0 u32 incarnation of the sender
//!  4 u32 incarnation of the receiver that it is meant for
//!  8 the message
//! ```

use fide_detector::{
    Event, HostSet, Verdict,
    planted::{self, Planted},
};
use fide_wire::{HOST_SLOT, MAX_HOSTS};

use crate::{Agreement, Decision, Message, MessageError, Refused};

/// Bytes before a message.
pub const PREFIX_LEN: usize = 8;

/// Until when this member may act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    pub now_ns: u64,
    /// [`fide_detector::Detector::lease_until_ns`].
    pub until_ns: u64,
}

impl Lease {
    #[must_use]
    pub fn holds(self) -> bool {
        self.now_ns < self.until_ns
    }
}

/// Why a datagram changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DatagramError {
    #[error("{len} bytes; a datagram has {PREFIX_LEN} and a message")]
    Length { len: usize },
    #[error("host {host} is not in this group")]
    Stranger { host: u16 },
    #[error("from incarnation {got} of host {host}; {want} is in this group")]
    OtherIncarnation { host: u16, got: u32, want: u32 },
    #[error("meant for incarnation {got} of this host, which is {want}")]
    NotMine { got: u32, want: u32 },
    #[error(transparent)]
    Message(#[from] MessageError),
    #[error("this member was excluded; it has to come back as another incarnation")]
    Stopped,
}

/// Why there is no such group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    #[error("host {host} is in the group twice, as incarnations {first} and {second}")]
    Twice { host: u16, first: u32, second: u32 },
    #[error("host {host} with incarnation {incarnation}: hosts are 1 to {MAX_HOSTS}, incarnations from 1")]
    Host { host: u16, incarnation: u32 },
    #[error("this host, {me}, is not in the group")]
    NotAMember { me: u16 },
}

/// A member of a group of incarnations.
#[derive(Debug, Clone)]
pub struct Leased<A> {
    protocol: A,
    me: u16,
    /// By id-1; 0: not a member.
    incarnations: [u32; MAX_HOSTS],
    stopped: bool,
}

impl<A: Agreement> Leased<A> {
    /// `members`: hosts and their incarnations, the same at all of them, and the same hosts as the protocol's.
    ///
    /// # Errors
    /// [`GroupError`].
    pub fn new(protocol: A, me: u16, members: &[(u16, u32)]) -> Result<Self, GroupError> {
        let mut incarnations = [0; MAX_HOSTS];
        for &(host, incarnation) in members {
            let place = incarnations.get_mut(usize::from(host).wrapping_sub(1)).filter(|_| incarnation != 0);
            let place = place.ok_or(GroupError::Host { host, incarnation })?;
            if *place != 0 {
                return Err(GroupError::Twice { host, first: *place, second: incarnation });
            }
            *place = incarnation;
        }
        if incarnations.get(usize::from(me).wrapping_sub(1)).is_none_or(|mine| *mine == 0) {
            return Err(GroupError::NotAMember { me });
        }
        Ok(Self { protocol, me, incarnations, stopped: false })
    }

    /// The protocol, to look at.
    pub fn protocol(&self) -> &A {
        &self.protocol
    }

    /// Excluded: nothing follows from it any more.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    fn incarnation(&self, host: u16) -> u32 {
        self.incarnations.get(usize::from(host).wrapping_sub(1)).copied().unwrap_or(0)
    }

    /// What the detector tells, in its order.
    pub fn detected(&mut self, event: &Event) {
        match *event {
            Event::Verdict(Verdict { host, slot: HOST_SLOT, incarnation, kind, .. })
                if kind.is_final() && incarnation == self.incarnation(host) && !self.stopped =>
            {
                self.protocol.crashed(host);
            }
            Event::Excluded { incarnation, .. } if incarnation == self.incarnation(self.me) => self.stopped = true,
            _ => {}
        }
    }

    /// A value for one of the next instances. Only a member whose lease holds is asked.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn propose(&mut self, lease: Lease, value: &[u8]) -> Result<(), Refused> {
        if self.stopped || !lease.holds() {
            return Err(Refused::Fenced);
        }
        self.protocol.propose(value)
    }

    /// A datagram has come from a host.
    ///
    /// # Errors
    /// [`DatagramError`]; nothing has changed.
    pub fn receive(&mut self, from: u16, datagram: &[u8]) -> Result<(), DatagramError> {
        if self.stopped {
            return Err(DatagramError::Stopped);
        }
        let wrong = DatagramError::Length { len: datagram.len() };
        let (prefix, bytes) = datagram.split_first_chunk::<PREFIX_LEN>().ok_or(wrong)?;
        let [a, b, c, d, e, f, g, h] = *prefix;
        let (sender, receiver) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        let (want, mine) = (self.incarnation(from), self.incarnation(self.me));
        if want == 0 || from == self.me {
            return Err(DatagramError::Stranger { host: from });
        }
        if sender != want {
            return Err(DatagramError::OtherIncarnation { host: from, got: sender, want });
        }
        if receiver != mine {
            return Err(DatagramError::NotMine { got: receiver, want: mine });
        }
        Ok(self.protocol.receive(from, &Message::read(bytes)?)?)
    }

    /// The next datagram, written over `datagram`, without the receiver's incarnation ([`Leased::address`] writes it); to whom.
    pub fn poll_transmit(&mut self, datagram: &mut Vec<u8>) -> Option<HostSet> {
        if self.stopped {
            return None;
        }
        let mine = self.incarnation(self.me);
        let (to, message) = self.protocol.poll_transmit()?;
        datagram.clear();
        datagram.extend_from_slice(&mine.to_le_bytes());
        datagram.extend_from_slice(&[0; 4]);
        message.write(datagram);
        Some(to)
    }

    /// Writes for whom a datagram is.
    ///
    /// # Panics
    /// If `datagram` is none of [`Leased::poll_transmit`].
    pub fn address(&self, datagram: &mut [u8], to: u16) {
        datagram[4..PREFIX_LEN].copy_from_slice(&self.incarnation(to).to_le_bytes());
    }

    /// The next decision that may be told. None while the lease does not hold: it is kept until it does.
    pub fn poll_decision(&mut self, lease: Lease) -> Option<Decision<'_>> {
        if (self.stopped || !lease.holds()) && !planted::is(Planted::TellsUnleased) {
            return None;
        }
        self.protocol.poll_decision()
    }

    /// Whether what was told here is all that was decided anywhere: a question about the state may be answered from it.
    pub fn may_answer(&self, lease: Lease) -> bool {
        let leased = !self.stopped && lease.holds();
        (leased || planted::is(Planted::AnswersUnleased)) && self.protocol.speaks_for_all()
    }

    /// [`Agreement::resend`].
    pub fn resend(&mut self) {
        if !self.stopped {
            self.protocol.resend();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Hsuc, Links};
    use fide_detector::{Evidence, VerdictKind, Via};
    use proptest::prelude::*;

    const HELD: Lease = Lease { now_ns: 5, until_ns: 6 };
    const RUN_OUT: Lease = Lease { now_ns: 6, until_ns: 6 };

    fn member(me: u16) -> Leased<Hsuc> {
        Leased::new(
            Hsuc::new(&crate::hsuc::Setting { window: 1, value_max: 64, links: Links::Lossy }, me, HostSet::first(2))
                .unwrap(),
            me,
            &[(1, 10), (2, 20)],
        )
        .unwrap()
    }

    fn silent(host: u16, incarnation: u32) -> Event {
        let evidence = Evidence {
            observer: 2,
            via: Via::Timeout,
            decided_ns: 0,
            last_seq: 0,
            last_rx_ns: [0; 2],
            timeout_ns: 0,
            at_ns: 0,
            own_stalls: 0,
            withheld: 0,
            votes: HostSet::EMPTY,
            superseded_by: 0,
            piggybacks_lost: 0,
        };
        Event::Verdict(Verdict { id: 1, host, slot: HOST_SLOT, incarnation, kind: VerdictKind::HostSilent, evidence })
    }

    fn datagram(from: &mut Leased<Hsuc>, to: u16) -> Vec<u8> {
        let mut bytes = Vec::new();
        from.poll_transmit(&mut bytes).expect("something to send");
        from.address(&mut bytes, to);
        bytes
    }

    #[test]
    fn without_a_lease_nothing_is_told_or_answered_and_nothing_is_lost() {
        let mut leader = member(1);
        assert_eq!(leader.propose(RUN_OUT, b"x"), Err(Refused::Fenced));
        leader.propose(HELD, b"x").unwrap();
        let mut follower = member(2);
        let proposal = datagram(&mut leader, 2);
        follower.receive(1, &proposal).unwrap();
        leader.receive(2, &datagram(&mut follower, 1)).unwrap();
        assert!(leader.may_answer(HELD) && !leader.may_answer(RUN_OUT));
        assert_eq!(leader.poll_decision(RUN_OUT), None);
        assert_eq!(leader.poll_decision(HELD).unwrap().instance, 1);
    }

    #[test]
    fn another_incarnation_is_another_member() {
        let mut leader = member(1);
        leader.propose(HELD, b"x").unwrap();
        let good = datagram(&mut leader, 2);
        let mut follower = member(2);
        let changed = |at: usize| {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            bytes
        };
        assert!(matches!(
            follower.receive(1, &changed(0)),
            Err(DatagramError::OtherIncarnation { got: 11, want: 10, .. })
        ));
        assert!(matches!(follower.receive(1, &changed(4)), Err(DatagramError::NotMine { got: 21, want: 20 })));
        assert!(matches!(follower.receive(3, &good), Err(DatagramError::Stranger { host: 3 })));
        assert!(matches!(follower.receive(1, &good[..7]), Err(DatagramError::Length { len: 7 })));
        follower.detected(&silent(1, 9));
        assert_eq!(follower.protocol().leader(), 1, "that was another");
        follower.detected(&silent(1, 10));
        assert_eq!(follower.protocol().leader(), 2);
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken_or_refused_and_never_decide(
            head in prop::sample::select(vec![[10u32, 20], [10, 21], [9, 20]]), bytes in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let mut follower = member(2);
            let mut datagram: Vec<u8> = head.iter().flat_map(|word| word.to_le_bytes()).collect();
            datagram.extend_from_slice(&bytes);
            if follower.receive(1, &datagram).is_ok() {
                prop_assert_eq!(head, [10, 20]);
            }
            let decides = Message::read(&bytes).is_ok_and(|message| matches!(message, Message::Decide { instance: 1, .. }));
            prop_assert_eq!(follower.poll_decision(HELD).is_some(), decides && follower.protocol().delivered() == 1);
        }
    }

    #[test]
    fn who_is_excluded_stops() {
        let mut leader = member(1);
        leader.propose(HELD, b"x").unwrap();
        leader.detected(&Event::Excluded { by: 2, incarnation: 9 });
        assert!(!leader.is_stopped());
        leader.detected(&Event::Excluded { by: 2, incarnation: 10 });
        assert!(leader.is_stopped() && !leader.may_answer(HELD));
        assert_eq!(leader.poll_transmit(&mut Vec::new()), None);
        assert_eq!(leader.receive(2, &[0; 24]), Err(DatagramError::Stopped));
    }

    #[test]
    fn a_group_has_each_host_once() {
        let protocol = || member(1).protocol().clone();
        let group = |members: &[(u16, u32)]| Leased::new(protocol(), 1, members).unwrap_err();
        assert_eq!(group(&[(1, 1), (1, 2)]), GroupError::Twice { host: 1, first: 1, second: 2 });
        assert_eq!(group(&[(1, 0)]), GroupError::Host { host: 1, incarnation: 0 });
        assert_eq!(group(&[(65, 1)]), GroupError::Host { host: 65, incarnation: 1 });
        assert_eq!(group(&[(2, 1)]), GroupError::NotAMember { me: 1 });
    }
}
