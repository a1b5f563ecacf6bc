// SPDX-License-Identifier: Apache-2.0
//! Traffic engineering for periodic multicast with a latency contract (FiDe §3.3, App. B, App. C; X-Lane §3).
//!
//! - [`topology`]: hosts, switches, cables; fat trees and leaf-spine networks of any size.
//! - [`file`]: topology, limits and requests as a TOML file.
//! - [`request`]: what a service asks for, and the contract that it gets.
//! - [`limits`]: what of the network the lane may use.
//! - [`trees`]: finds K trees that share no switch and no cable; [`tree`] proves it.
//! - `queue`, `network`: the longest a packet can take to each receiver, whatever the phases, from every
//!   queue on its way.
//! - [`plan`]: [`Planner`], which holds requests, refuses what cannot be held, and moves trees away from what broke.
//! - [`odds`]: how likely all trees of a set fail at once.
//!
//! # What a packet is, and what may delay it
//!
//! **Size.** A request names its largest UDP payload. On the wire a packet costs [`request::OVERHEAD_BYTES`]
//! = 66 bytes more: UDP 8, IPv4 20, Ethernet 14, frame check sequence 4, preamble and gap between frames 20.
//! No packet costs less than [`request::WIRE_MIN_BYTES`] = 84 bytes. Bandwidths, queues and backlogs are in
//! these wire bytes.
//!
//! **Where a latency begins and ends.** It begins when the sender's host has put the packet into the egress
//! queue of its port. It ends when the last bit has arrived at the receiver's host and the cable's
//! `latency_min_ns` to `jitter_max_ns` more have passed: propagation, and processing at the node where the
//! cable ends. What a host itself adds (from the program to the queue, from the interface to the program)
//! counts only as far as the figures of the host's cables contain it; [`topology::CableSpec`]'s defaults do,
//! from X-Lane's measurement. The jitter of a sender's own loop is not in it.
//!
//! **On each hop** a packet is stored as a whole, waits in the egress queue of its port, is sent, and travels:
//!
//! | part | least | most |
//! |---|---|---|
//! | waiting for a frame that is being sent already | 0 | the larger of [`Limits::best_effort_wire_bytes`] and the largest packet of a lower sub-lane |
//! | waiting for packets of the same sub-lane, and of higher ones | 0 | all that can be there at any phases of all senders: see `queue` |
//! | waiting for what others send at the highest priority | 0 | the cable's `reserved_burst_bytes`, and `reserved_bps` from then on |
//! | sending | a packet of 84 bytes at the cable's bandwidth | the largest packet of the request |
//! | propagation, and processing at the next node | `latency_min_ns` | `latency_min_ns + jitter_max_ns` |
//!
//! The least of all parts together is lambda_min, the most is lambda_min + delta_max. A contract spans all trees of a
//! request: the earliest packet over any tree, the latest over any tree, so that it holds as long as one tree works.
//!
//! **What has to be true.** Senders keep to their largest packet and shortest period; ports serve sub-lanes
//! strictly by priority and nothing else has a priority above or among them, but what is reserved; queues
//! hold `queue_bytes`, so that no packet of the lane is dropped for want of room. Lost packets are not sent
//! again: [`odds`] says how likely all trees fail together.
//!
//! **Invariant:** no file, socket, switch, clock or random source.
#![forbid(unsafe_code)]

pub mod file;
pub mod limits;
mod network;
pub mod odds;
pub mod plan;
mod queue;
pub mod request;
pub mod topology;
pub mod tree;
pub mod trees;

pub use limits::Limits;
pub use network::{LinkUse, Overload};
pub use plan::{Allocation, Changed, Planner, Refusal, RequestId};
pub use queue::transmission_ps;
pub use request::{Contract, Latency, Request};
pub use topology::{CableId, LinkId, NodeId, Topology};
pub use tree::Tree;
