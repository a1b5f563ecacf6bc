// SPDX-License-Identifier: Apache-2.0
//! Everything that crosses the boundary between a controller and those who talk to it. Both sides use these types and no
//! others.
//!
//! - [`identity`]: who talks, as a certificate says it; [`revoked`]: which certificates do not count any more.
//! - [`tls`]: mutual TLS, the client's half; its files are read again while it runs.
//! - [`paths`], [`method`]: where a controller answers what.
//! - [`lane`], [`network`], [`cluster`]: the bodies of requests and answers; [`event`]: what is told unasked.
//! - [`failure`]: what is answered instead, and its codes.
//! - [`sequence`]: the order of requests that change something.
//! - [`limits`]: how much of everything a client may have.
//! - [`client`]: how a host calls: one connection, one order of requests.
//!
//! **Invariant:** nothing here decides anything, stores anything or serves anything.

#![forbid(unsafe_code)]

pub mod client;
pub mod cluster;
pub mod event;
pub mod failure;
pub mod identity;
pub mod lane;
pub mod limits;
pub mod method;
pub mod network;
pub mod paths;
pub mod revoked;
pub mod sequence;
pub mod tls;

pub use failure::Code;
pub use method::Method;
