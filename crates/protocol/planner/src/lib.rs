// SPDX-License-Identifier: Apache-2.0
//! Traffic engineering for periodic multicast with a latency contract (FiDe §3.3, App. B, App. C; X-Lane §3).
//!
//! - [`topology`]: hosts, switches, cables; fat trees and leaf-spine networks of any size.
//! - [`file`]: topology, limits and requests as a TOML file.
//! - [`request`]: what a service asks for, and the contract that it gets.
//! - [`limits`]: what of the network the lane may use.
//! - [`trees`]: finds K trees that share no switch and no cable; [`tree`] proves it.
//! - `queue`, `network`: the longest a packet can take to each receiver, whatever the phases, from every queue on its way.
//! - [`plan`]: [`Planner`], which holds requests, refuses what cannot be held, and moves trees away from what broke.
//! - [`odds`]: how likely all trees of a set fail at once.
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
