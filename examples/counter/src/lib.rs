// SPDX-License-Identifier: Apache-2.0
//! A replicated counter: a member of a group as a program has it, and as simple as that can be.
//!
//! | module | what it holds |
//! |---|---|
//! | `state` | what the log makes: the counter, what each client has added, a hash of all |
//! | `load` | clients in the replica itself, for benches |
//! | `lines` | what a replica is asked and tells, one JSON object in a line |
//! | `program` | the replica: [`fide_group::Member`], fed and asked |
//! | `handle` | replicas on the hosts of a testbed |
//!
//! Clients outside number what they add. Whoever is not answered, as its leader has died, asks the next one again with the same
//! number: it counts once.
#![forbid(unsafe_code)]

mod handle;
mod lines;
mod load;
mod program;
mod state;

pub use handle::{Node, Replicas, Spec};
pub use lines::{Add, Order, Reported};
pub use program::{Protocol, main};
