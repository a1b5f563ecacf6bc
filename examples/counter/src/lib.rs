// SPDX-License-Identifier: Apache-2.0
//! A replicated counter: a member of a group in a program, as simple as possible.
//!
//! | module | content |
//! |---|---|
//! | `state` | the state that the log leads to: the counter, what each client has added, a hash of all |
//! | `load` | clients in the replica itself, for benchmarks |
//! | `lines` | orders to a replica and its reports, one JSON object in a line |
//! | `program` | the replica: [`fide_group::Member`], fed and asked |
//! | `handle` | replicas on the hosts of a testbed |
//!
//! Clients outside number their requests. A client without an answer, because its leader has died, sends the
//! request to the next leader with the same number: it counts once.
#![forbid(unsafe_code)]

mod handle;
mod lines;
mod load;
mod program;
mod state;

pub use handle::{Node, Replicas, Spec};
pub use lines::{Add, Order, Reported};
pub use program::{Protocol, main};
