// SPDX-License-Identifier: Apache-2.0
//! A member of a group on a real host: the agreement of [`fide_agreement`], fed with events of the host's
//! agent and with packets that the other members send over UDP.
//!
//! A member is a process. It joins with its agent as `group@host`, and watches the processes of that name on
//! the other hosts: the kernel of a process' own host reports its death, and the detector reports a host that
//! is silent. The member acts while the lease of its host holds. One thread, the caller's, does everything,
//! in [`Member::wait`].
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
//! Between two waits, a service takes over a state or polls decisions (there is never both at once), then
//! gives its own state if that is wanted. All decisions that were polled have to be in that state.
//!
//! | module | what it holds |
//! |---|---|
//! | `member` | [`Member`]: the loop, on a host |
//! | [`core`] | what it does in each turn, and in which order, without a host |
//! | `log` | what a durable member has stored |
//! | `durable` | what a durable member stores in each turn, and has from its disk when it begins |
//! | `files` | files that are there, whole, after a power cut |
//! | `liveness` | the other members' processes, as incarnations of members |
//! | [`packet`] | sealed packets of datagrams |
//! | `port` | packets to and from the network, in trains |
//! | `record` | a host's record of its group, on disk |
//! | `spin` | polling for a moment before sleeping |
//! | `versions` | which versions of what members say to each other a program speaks |
//! | `waits` | how long a host that is not a member yet has waited for each thing |
//!
//! **Security.** A packet without the group's key changes nothing. Neither does a packet that was recorded
//! and is sent again: the group takes every message twice without harm, and takes none of another
//! incarnation. Packets are encrypted.
//!
//! **Bounds** are constants, each beside the code that it bounds. What exceeds a bound is dropped, as a
//! packet may be lost, and sent again.
#![forbid(unsafe_code)]

mod config;
pub mod core;
mod durable;
mod files;
mod liveness;
mod log;
mod member;
pub mod packet;
mod port;
mod record;
mod spin;
mod versions;
mod waits;

pub use config::{Config, HUC_VALUE_MAX, VALUE_MAX, hsuc, huc};
// The types of this crate's interface, so that a service needs no other crate.
pub use durable::Recovery;
pub use fide_agreement::{
    Decision, Entry, GroupError, Held, HostSet, Hsuc, Huc, Identity, Refused, Standing, Start, View, ViewMember, batch,
    group::entries,
    hsuc::Setting as HsucSetting,
    huc::Setting as HucSetting,
    transfer::{OfferError, Reason, RoomError},
};
pub use fide_client::{Client, ConnectOptions, Error as ClientError, wake_eagerly};
pub use fide_wire::Key;
pub use log::{LogError, StoredState};
pub use member::{Counters, Member};
pub use record::RecordError;
pub use versions::{PROTOCOL, Spoken, Versions};

use std::net::SocketAddr;

/// Why a member was not made, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Client(#[from] fide_client::Error),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Group(#[from] fide_agreement::GroupError),
    #[error("host {name} is none of this cluster; its hosts are {known}")]
    UnknownHost { name: String, known: String },
    #[error("this host, {name}, is not among the hosts of the group: {hosts}")]
    NotAMember { name: String, hosts: String },
    #[error("host {name} is in the group's list twice")]
    Twice { name: String },
    #[error("the group's list of hosts is empty; name two at least")]
    NoHosts,
    #[error("the agent is older than this program and does not name the hosts of the cluster; update it")]
    OldAgent,
    #[error(
        "host {name} has no address: all planes of its cluster are windows, and the members of a group send each other packets over a \
         network; give the cluster a plane that is one"
    )]
    NoNetwork { name: String },
    #[error("binding UDP {address}: {why}; use another port for this group, the same at all hosts")]
    Bind { address: SocketAddr, why: std::io::Error },
    #[error(
        "packets of {} bytes do not fit the path to {to}; its MTU has to be 1500 at least",
        packet::PACKET_MAX + 28
    )]
    TooLong { to: SocketAddr },
    #[error(
        "a heartbeat here has room for a message of {granted} bytes, and this protocol needs {need}; use a shorter value_max, the same at \
         all hosts, or planes with a larger MTU"
    )]
    Heartbeat { need: usize, granted: u16 },
    #[error("payloads of up to {got} bytes do not fit the log of a durable group; make payload_max {max} at most")]
    PayloadMax { got: u64, max: u64 },
    #[error("{what}: {why}")]
    System { what: &'static str, why: std::io::Error },
}

impl Error {
    pub(crate) fn system<E: Into<std::io::Error>>(what: &'static str) -> impl Fn(E) -> Self {
        move |why| Self::System { what, why: why.into() }
    }
}
