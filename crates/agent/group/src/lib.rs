// SPDX-License-Identifier: Apache-2.0
//! A member of a group on a real host: the agreement of [`fide_agreement`], fed with what the host's agent tells and with what the
//! others send over UDP.
//!
//! A member is a process. It joins with its agent as `group@host`, and watches the others of that name: that one has died it is
//! told by the kernel of its host, that a host is silent by the detector. It acts while the lease of its host holds. One thread,
//! the caller's, does everything, in [`Member::wait`].
//!
//! ```no_run
//! use fide_group::{Config, ConnectOptions, Entry, Hsuc, Member, entries, hsuc};
//!
//! # fn main() -> Result<(), fide_group::Error> {
//! let key = "00112233445566778899aabbccddeeff".parse().expect("32 digits");
//! let config = Config::new("counter", &["alpha", "beta", "gamma"], key, "/var/lib/counter", hsuc(32));
//! let mut member: Member<Hsuc> = Member::open(config, ConnectOptions::default())?;
//! let mut count = 0_u64;
//! loop {
//!     if let Some((_, state)) = member.poll_install() {
//!         count = u64::from_le_bytes(state.try_into().expect("8 bytes"));
//!     }
//!     while let Some(decision) = member.poll_decision() {
//!         count += entries(decision.value).filter(|entry| matches!(entry, Entry::Value(_))).count() as u64;
//!     }
//!     if member.wants_state() {
//!         let _ = member.give_state(count.to_le_bytes().to_vec());
//!     }
//!     if member.leads() {
//!         let _ = member.propose(b"one more");
//!     }
//!     member.wait(None)?;
//! }
//! # }
//! ```
//!
//! Between two waits: a state to take over, or decisions, of which only one is there at a time; then the own state, if it is wanted. What is
//! required is that all decisions that were polled are in that state.
//!
//! | module | what it holds |
//! |---|---|
//! | `member` | [`Member`]: the loop, on a host |
//! | [`core`] | what it does, in which order, without a host |
//! | `ears` | what the agent tells, as incarnations of members |
//! | [`packet`] | datagrams in packets, sealed |
//! | `port` | packets to and from the network |
//! | `record` | what a host remembers of its group |
//! | `waits` | for how long a host that is no member yet has waited for what |
//!
//! **What the others may do.** A packet that does not bear the group's key changes nothing; nor does one that was recorded and is
//! sent again, as the group takes every message twice without harm, and none of another incarnation. Packets are encrypted.
//!
//! **Bounds** are constants at their place; what is beyond is lost as a packet may be, and sent again.
#![forbid(unsafe_code)]

mod config;
pub mod core;
mod ears;
mod member;
pub mod packet;
mod port;
mod record;
mod spin;
mod waits;

pub use config::{Config, HUC_VALUE_MAX, VALUE_MAX, hsuc, huc};
// All that a service meets in this crate's types, so that it needs no other.
pub use fide_agreement::{
    Decision, Entry, GroupError, HostSet, Hsuc, Huc, Identity, Member as ViewMember, Refused, Standing, Start, View,
    batch,
    group::entries,
    hsuc::Setting as HsucSetting,
    huc::Setting as HucSetting,
    transfer::{OfferError, Reason, RoomError},
};
pub use fide_client::{Client, ConnectOptions, Error as ClientError, wake_eagerly};
pub use fide_wire::Key;
pub use member::{Counters, Member};
pub use record::RecordError;

use std::net::SocketAddr;

/// Why there is no such member, or it cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Client(#[from] fide_client::Error),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Group(#[from] fide_agreement::GroupError),
    #[error("host {name} is none of this cluster; its hosts are {known}")]
    UnknownHost { name: String, known: String },
    #[error("this host, {name}, is not among the hosts of the group: {hosts}")]
    NotAMember { name: String, hosts: String },
    #[error("host {name} is in the group's list twice")]
    Twice { name: String },
    #[error("the group's hosts are an empty list; name two at least")]
    NoHosts,
    #[error("the agent does not say which hosts there are; it is older than this program, so update it")]
    OldAgent,
    #[error("binding UDP {address}: {why}; use another port for this group, the same at all hosts")]
    Bind { address: SocketAddr, why: std::io::Error },
    #[error(
        "packets of {} bytes do not fit the way to {to}; its MTU has to be 1500 at least",
        packet::PACKET_MAX + 28
    )]
    TooLong { to: SocketAddr },
    #[error(
        "heartbeats here take {granted} bytes of a message along, and this protocol needs {need}; give it a shorter value_max, the same at \
         all hosts, or planes with a larger MTU"
    )]
    Heartbeat { need: usize, granted: u16 },
    #[error("{what}: {why}")]
    System { what: &'static str, why: std::io::Error },
}

impl Error {
    pub(crate) fn system<E: Into<std::io::Error>>(what: &'static str) -> impl Fn(E) -> Self {
        move |why| Self::System { what, why: why.into() }
    }
}
