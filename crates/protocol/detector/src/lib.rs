// SPDX-License-Identifier: Apache-2.0
//! The failure detector as a state machine.
//!
//! Feed it what arrived and what time it is. Then ask what to send, when to come back, and what happened:
//!
//! ```text
//! handle_beat / handle_packet / handle_sections / process_changed ─► Detector ─► poll_transmit, poll_timeout, poll_event
//!                                                        tick(now) ─►
//! ```
//!
//! The verbs, each an `impl Detector` of its own:
//!
//! | file | holds |
//! |---|---|
//! | [`detector`] | the parts of a detector, `poll_timeout`, `poll_event`, the present lease |
//! | `inbox` | what arrives: who may speak, signs of life, acknowledgements; `origin`: the packet that it came in |
//! | `remote` | what peers report of their processes: entries, messages, ends |
//! | `judge` | `tick`: who is up and who is dead |
//! | `evidence` | verdicts, with the evidence for them |
//! | `outbox` | `poll_transmit`: what heartbeats and notices say |
//! | `local` | what local programs ask for: joins, ends, messages, watches |
//! | `timeouts` | the timeouts of pairs, and what this host promises by them |
//! | [`echo`] | which hosts are alive now, and not a recording |
//! | [`former`] | what became of hosts that an earlier agent has reported as up |
//! | `doubt` | what follows when this host's clock may have stood still |
//! | `put_back` | whether this machine was put back to a snapshot |
//! | `restart` | a witness goes on as the incarnation that it was, an excluded host as a new one |
//! | `snapshot` | the whole detector as bytes, for a takeover |
//!
//! The parts, each of which keeps its own invariants:
//!
//! | file | holds |
//! |---|---|
//! | [`config`], [`types`] | what a cluster is; events, verdicts, evidence, counters, errors |
//! | [`peer`], `peers` | what is heard of one host, and of all: planes, timeout, acknowledgements (FiDe §3.3, §3.4) |
//! | [`lease`], `promises` | for how long this node may act, and why that is safe; what it has promised others |
//! | [`view`], [`clique`] | consensus on who is a member (policy majority), and why that is safe |
//! | [`roster`], `carry` | local processes and those of peers; how an entry reaches every peer |
//! | [`piggyback`] | application messages on heartbeats: queues, order, and the pool that lends their bytes |
//! | [`wishes`] | watches of local clients and of peers |
//! | `schedule`, `events` | which heartbeats are due; the bounded queue of events |
//! | `life`, [`incarnation`] | the lives and the end of the own incarnation; how the next one is numbered |
//! | [`receive_model`] | what the kernel's receive program keeps to itself, for worlds that simulate hosts |
//!
//! Times are nanoseconds of one clock of this host, given by the caller: one that nobody slews
//! (docs/internals/clocks.md).
//!
//! **Invariant:** no sockets, no clocks, no threads, no randomness, and no allocation after
//! [`Detector::new`].
#![forbid(unsafe_code)]

mod carry;
pub mod clique;
pub mod config;
pub mod detector;
mod doubt;
pub mod echo;
mod events;
mod evidence;
pub mod former;
mod inbox;
pub mod incarnation;
mod judge;
pub mod lease;
mod life;
mod local;
mod origin;
mod outbox;
pub mod peer;
mod peers;
pub mod piggyback;
mod promises;
mod put_back;
pub mod receive_model;
mod remote;
mod restart;
pub mod roster;
mod schedule;
mod snapshot;
mod timeouts;
pub mod types;
pub mod view;
pub mod wishes;

pub use config::{Config, ConfigError, Member, timeout_ns};
pub use detector::Detector;
pub use fide_types::{HostSet, Policy, ProcessState, Reason, Role, Trust};
pub use former::Former;
pub use outbox::{Transmit, TransmitKind};
pub use schedule::URGENT_MAX;
pub use snapshot::SnapshotError;
pub use types::*;
pub use view::Vote;

#[cfg(test)]
mod tests;
