// SPDX-License-Identifier: Apache-2.0
//! Agreement that needs no quorum: it survives all crashes but one, as the detector is right about them (FiDe §4, App. A).
//!
//! - [`message`]: what members send each other, as values and as bytes.
//! - [`hsuc`]: hierarchical stabilizing uniform consensus, its broadcast (OSRB) included, as a log of instances.
//! - [`fcurb`]: fail-consistent uniform reliable broadcast, on the detector's heartbeats.
//! - [`huc`]: heartbeat uniform consensus over it.
//! - [`batch`]: many proposals in one instance.
//! - [`view`]: who is in a group.
//! - [`group`]: a group that changes, under leases: on hosts that may pause, and networks that may be cut.
//! - [`transfer`]: payloads that are too long for a value, ahead of the agreement on them; states for members that join.
//!
//! A protocol is fed what happens ([`Agreement::receive`], [`Agreement::crashed`], [`Agreement::propose`]) and asked what follows
//! ([`Agreement::poll_transmit`], [`Agreement::poll_decision`]).
//!
//! **What it stands on.** A crash is told by a detector that is right. Links between members that live lose nothing and may reorder, as
//! published ([`Links::Reliable`]); or they lose, repeat and reorder, which costs time, never agreement ([`Links::Lossy`]). The order of events at one member is the caller's: each
//! call is one atomic step.
//!
//! **Invariant:** no sockets, clocks, threads or randomness; nothing is allocated once every buffer has been used, but
//! for payloads.
#![forbid(unsafe_code)]

pub mod batch;
pub mod fcurb;
pub mod group;
pub mod hsuc;
pub mod huc;
pub mod lease;
pub mod message;
pub mod transfer;
pub mod view;
#[cfg(test)]
mod world;

pub use fcurb::{Fcurb, Trust};
pub use fide_types::{HostSet, planted};
pub use group::{Entry, Group, GroupError, Standing};
pub use hsuc::{ConfigError, Hsuc, Links};
pub use huc::Huc;
pub use lease::Lease;
pub use message::{Message, MessageError};
pub use transfer::{Identity, Transfers};
pub use view::{Member, View, ViewError};

/// A decided instance, told in order, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision<'a> {
    /// From 1.
    pub instance: u64,
    /// What was decided; empty where a leader had nothing to propose and closed a gap.
    pub value: &'a [u8],
}

/// Why a proposal is not taken. Nothing has changed then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("member {leader} leads; propose there")]
    NotLeader { leader: u16 },
    #[error("a value of {len} bytes; at most {max} fit, send the rest ahead")]
    TooLong { len: usize, max: usize },
    #[error("this member has no lease, or was excluded; propose again when it is heard, or at another")]
    Fenced,
    #[error("as many proposals wait as fit one instance; propose again after the next decision")]
    Full,
    #[error("the members change; propose again when the next view has begun")]
    Changing,
    #[error("host {host} is no member of this view")]
    NoMember { host: u16 },
    #[error(transparent)]
    Payload(#[from] transfer::OfferError),
}

/// A protocol by which members agree on a log.
pub trait Agreement {
    /// Proposes a value for one of the next instances.
    ///
    /// # Errors
    /// [`Refused`].
    fn propose(&mut self, value: &[u8]) -> Result<(), Refused> {
        self.propose_tagged(None, value)
    }

    /// As [`Agreement::propose`], for a value with a byte before it, which need not be put together first.
    ///
    /// # Errors
    /// [`Refused`], with the length of both.
    fn propose_tagged(&mut self, tag: Option<u8>, value: &[u8]) -> Result<(), Refused>;

    /// A message of another member has come.
    ///
    /// # Errors
    /// [`MessageError`]: it is none that a member of this group sends; nothing has changed.
    fn receive(&mut self, from: u16, message: &Message<'_>) -> Result<(), MessageError>;

    /// The detector says that a member has crashed. Its messages may still come.
    fn crashed(&mut self, member: u16);

    /// The next message to be sent, and to whom. To be asked until there is none, after each call of the others.
    fn poll_transmit(&mut self) -> Option<(HostSet, Message<'_>)>;

    /// The next message for all, by FCURB: in the next heartbeat (FiDe App. A.4). To be asked as [`Agreement::poll_transmit`] is;
    /// none in protocols that do without.
    fn poll_broadcast(&mut self) -> Option<Message<'_>> {
        None
    }

    /// The heartbeat with the last [`Agreement::poll_broadcast`] has left on all trees: this member's own copy is delivered.
    fn broadcast_left(&mut self) {}

    /// The next decision. To be asked until there is none, before anything else is fed: what is not taken holds up later ones.
    fn poll_decision(&mut self) -> Option<Decision<'_>>;

    /// Who leads, as far as this member knows.
    fn leader(&self) -> u16;

    /// Whether what this member has told its user is all that was ever decided: it leads, and has decided what earlier leaders
    /// may have. With a lease besides, it may answer questions about the state without asking anybody.
    fn speaks_for_all(&self) -> bool;

    /// Whether somebody's answer is due now: messages of others have been sent, or are about to be, and are not decided yet. A member that waits
    /// may look for them for a moment before it sleeps.
    fn awaits_answer(&self) -> bool {
        false
    }

    /// The log of these members ends with what has been told here: from now on nothing is decided, and nothing is taken but what
    /// serves those who have not told as much yet. `undecided` is given what this member has proposed and nobody has decided
    /// before the end, as batches, in their order.
    fn close(&mut self, undecided: &mut dyn FnMut(&[u8]));

    /// To be called from time to time where links lose messages: what was sent before the last call and has had no answer is
    /// sent again; whether there was anything. A good time between calls is a little more than a round trip. Nothing where links are reliable.
    fn resend(&mut self) -> bool;
}

/// A protocol that can begin anew, with other members.
pub trait Start: Agreement + Sized {
    /// What all members have in common, whoever they are.
    type Setting: Copy + std::fmt::Debug;
    type Error: std::error::Error + 'static;

    /// Bytes of the longest message of [`Agreement::poll_broadcast`]; 0 for protocols that do without.
    fn broadcast_max(_setting: &Self::Setting) -> usize {
        0
    }

    /// A member that has decided nothing yet.
    ///
    /// # Errors
    /// The setting does not suit these members.
    fn start(setting: &Self::Setting, me: u16, members: HostSet) -> Result<Self, Self::Error>;
}
