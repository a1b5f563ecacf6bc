// SPDX-License-Identifier: Apache-2.0
//! The failure detector as a state machine.
//!
//! Feed it what arrived and what time it is, then ask what to send, when to come back, and what to tell:
//!
//! ```text
//! handle_beat / handle_packet / handle_sections / process_changed ─► Detector ─► poll_transmit, poll_timeout, poll_event
//!                                                        tick(now) ─►
//! ```
//!
//! | file | holds |
//! |---|---|
//! | [`config`] | what a cluster is, and which configurations are refused |
//! | [`types`] | events, verdicts, evidence, counters |
//! | [`peer`] | what is heard of one host: planes, timeout, acknowledgements (FiDe §3.3, §3.4) |
//! | [`echo`] | which hosts are alive now, and not a recording |
//! | [`incarnation`] | the next incarnation of a host, by its wall clock and its disk |
//! | [`former`] | what became of hosts that an agent before this one has told to be up |
//! | [`lease`] | for how long this node may act, and why that is safe |
//! | [`view`] | the agreement on who is a member (policy majority), and why that is safe |
//! | `doubt` | what follows when this host's clock may have stood still |
//! | [`roster`] | local processes and those that peers told of |
//! | [`piggyback`] | application messages on heartbeats: queues, order, the pool that lends their bytes |
//! | [`receive_model`] | what the kernel's receive program keeps to itself, for worlds that simulate hosts |
//! | `snapshot` | all of it written down, for a takeover |
//! | [`detector`] | the verbs; `inbox` reads sections, `outbox` writes heartbeats, `judge` gives verdicts |
//!
//! Times are nanoseconds of one clock of this host, given by the caller: one that nobody slews (docs/internals/clocks.md).
//!
//! **Invariant:** no sockets, no clocks, no threads, no randomness, and no allocation after [`Detector::new`].
#![forbid(unsafe_code)]

pub mod clique;
pub mod config;
pub mod detector;
mod doubt;
pub mod echo;
pub mod former;
mod inbox;
pub mod incarnation;
mod judge;
pub mod lease;
mod outbox;
pub mod peer;
pub mod piggyback;
mod promise;
pub mod receive_model;
pub mod roster;
mod snapshot;
pub mod types;
pub mod view;

pub use config::{Config, ConfigError, Member, timeout_ns};
pub use detector::{Detector, Transmit, TransmitKind, URGENT_MAX};
pub use fide_types::{HostSet, Policy, ProcessState, Reason, Role, Trust};
pub use former::Former;
pub use snapshot::SnapshotError;
pub use types::*;
pub use view::{Says, Vote};

#[cfg(test)]
mod tests;
