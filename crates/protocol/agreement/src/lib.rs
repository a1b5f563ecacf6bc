// SPDX-License-Identifier: Apache-2.0
//! Agreement without quorums: it survives the crash of all members but one, as it may rely on the failure
//! detector (FiDe §4, App. A).
//!
//! - [`message`]: messages between members, as values and as bytes.
//! - [`hsuc`]: hierarchical stabilizing uniform consensus, including its broadcast (OSRB), as a log of
//!   instances.
//! - [`fcurb`]: fail-consistent uniform reliable broadcast, on the detector's heartbeats.
//! - [`huc`]: heartbeat uniform consensus, on top of FCURB.
//! - [`batch`]: many proposals in one instance.
//! - [`view`]: the members of a group.
//! - [`group`]: a group whose members change, under leases: on hosts that may pause, and networks that may be
//!   cut.
//! - [`transfer`]: payloads that are too long for a value, sent ahead of the agreement on them; states for
//!   hosts that join.
//!
//! The caller feeds a protocol events ([`Agreement::receive`], [`Agreement::crashed`],
//! [`Agreement::propose`]), then polls what follows from them ([`Agreement::poll_transmit`],
//! [`Agreement::poll_decision`]).
//!
//! **Assumptions.** The detector reports a crash only if it happened. Links between live members lose nothing
//! and may reorder, as published ([`Links::Reliable`]); or they lose, repeat and reorder, which costs time
//! but never agreement ([`Links::Lossy`]). The caller chooses the order of events at one member: each call is
//! one atomic step.
//!
//! **Words.** A message is *stored* when a member keeps it. An instance is *decided* when its value can
//! change no more, and *delivered* when the decision was handed to the user; decisions are delivered in
//! order. A member is *dead* here once the detector has reported its crash.
//!
//! **Invariant:** no sockets, clocks, threads or randomness; nothing is allocated once every buffer has been
//! used, except for payloads.
#![forbid(unsafe_code)]

use fide_types::HostId;

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
pub use view::{View, ViewError, ViewMember};

/// A decided instance. Decisions are delivered in order, each once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision<'a> {
    /// From 1.
    pub instance: u64,
    /// The decided value; empty where a new leader had nothing to propose and closed a gap.
    pub value: &'a [u8],
}

/// What a member stores of an instance that was not delivered to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held<'a> {
    /// From 1; of a group, the position in its log.
    pub instance: u64,
    /// Which value of the instance this is: one instance and one round have one value. 0: the decided value.
    pub round: u16,
    /// A batch ([`batch::values`]); of a group, [`group::entries`] reads it.
    pub value: &'a [u8],
}

/// Why a proposal is refused. Nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("member {leader} leads; propose there")]
    NotLeader { leader: u16 },
    #[error("a value of {len} bytes; at most {max} fit, so send it ahead as a payload")]
    TooLong { len: usize, max: usize },
    #[error("this member has no lease, or was excluded; propose again once it has one, or at another member")]
    Fenced,
    #[error("the waiting proposals fill one instance; propose again after the next decision")]
    Full,
    #[error("the members are changing; propose again when the next view has begun")]
    Changing,
    #[error("host {host} is not a member of this view")]
    NoMember { host: HostId },
    #[error("host {host} leads already")]
    Leads { host: HostId },
    #[error("host {host} is dead; name a live member")]
    Dead { host: HostId },
    #[error("host {host} does not have the group's state yet; ask again once it is a member that acknowledges")]
    NoState { host: HostId },
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

    /// As [`Agreement::propose`], for a value that consists of a tag byte and `value`, without copying them
    /// together first.
    ///
    /// # Errors
    /// [`Refused`]; its length is that of both together.
    fn propose_tagged(&mut self, tag: Option<u8>, value: &[u8]) -> Result<(), Refused>;

    /// A message from another member.
    ///
    /// # Errors
    /// [`MessageError`]: no member of this group sends such a message; nothing has changed.
    fn receive(&mut self, from: u16, message: &Message<'_>) -> Result<(), MessageError>;

    /// The detector reports that a member has crashed. Its messages may still come.
    fn crashed(&mut self, member: u16);

    /// The next message to be sent, and its receivers. To be polled until there is none, after each call of
    /// another method.
    fn poll_transmit(&mut self) -> Option<(HostSet, Message<'_>)>;

    /// The next message for all members by FCURB, that is, in the next heartbeat (FiDe App. A.4). To be
    /// polled as [`Agreement::poll_transmit`] is; always none in protocols without broadcasts.
    fn poll_broadcast(&mut self) -> Option<Message<'_>> {
        None
    }

    /// The heartbeat with the message of the last [`Agreement::poll_broadcast`] has left on all trees: this
    /// member delivers its own copy.
    fn broadcast_left(&mut self) {}

    /// The next decision, which is delivered with this call. To be polled until there is none, before
    /// anything else is fed: a decision that is not polled holds up later ones.
    fn poll_decision(&mut self) -> Option<Decision<'_>>;

    /// The member that leads, as far as this member knows.
    fn leader(&self) -> u16;

    /// Whether this member has delivered everything that was ever decided: it leads, and has decided what
    /// earlier leaders may have decided. If it also holds a lease, it may answer questions about the state
    /// without asking anybody.
    fn speaks_for_all(&self) -> bool;

    /// Whether a leader has delivered what earlier leaders may have decided. Before that it cannot know what ends its
    /// log.
    fn has_inherited(&self) -> bool {
        true
    }

    /// Instances up to this one may be decided anywhere: no live member has decided a later one, since each
    /// decision waits for this member to store it. At least the last instance that was delivered here.
    fn stored(&self) -> u64;

    /// Calls `each` with every value that may be decided in an instance after the last delivered one, in the
    /// order of instances. An instance that was decided anywhere is among them with its decided value, as each
    /// decision waits for this member to store it. False: this protocol does not know its values, and any
    /// instance up to [`Agreement::stored`] may be decided with any value.
    fn each_held(&self, _each: &mut dyn FnMut(Held<'_>)) -> bool {
        false
    }

    /// The user is delivered no decision before the leader says that it may be. So this member may decide a value that
    /// all members store although the leader does not know that yet. To be called before anything else, at all members
    /// or at none. By default nothing is decided sooner.
    fn decide_before_leader(&mut self) {}

    /// Whether the answer of another member is due at once, as instances are under way. A member that waits
    /// may then poll for a moment before it sleeps.
    fn awaits_answer(&self) -> bool {
        false
    }

    /// Ends the log of these members with what has been delivered here. From now on nothing is decided, and
    /// the protocol only serves members that have not delivered as much yet. `undecided` is called with what
    /// this member proposed and nobody decided before the end, as batches, in order.
    fn close(&mut self, undecided: &mut dyn FnMut(&[u8]));

    /// To be called from time to time where links lose messages: sends again what was sent before the last
    /// call and has had no answer. Whether there was anything. A good interval is a little more than a round
    /// trip. Does nothing where links are reliable.
    fn resend(&mut self) -> bool;
}

/// A protocol that can be started anew, with other members.
pub trait Start: Agreement + Sized {
    /// What all members have to have in common.
    type Setting: Copy + std::fmt::Debug;
    type Error: std::error::Error + 'static;

    /// Bytes of the longest message of [`Agreement::poll_broadcast`]; 0 for protocols without broadcasts.
    fn broadcast_max(_setting: &Self::Setting) -> usize {
        0
    }

    /// A member that has decided nothing yet.
    ///
    /// # Errors
    /// The setting does not suit these members.
    fn start(setting: &Self::Setting, me: u16, members: HostSet) -> Result<Self, Self::Error>;
}
