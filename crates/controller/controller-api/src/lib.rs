// SPDX-License-Identifier: Apache-2.0
//! The contract between a controller and its clients: agents, operators, tests. Both sides use these types
//! and no others.
//!
//! - [`identity`]: the role and name in a certificate; [`revoked`]: the list of withdrawn certificates.
//! - [`tls`]: mutual TLS, the client's half; its files are read again while it runs.
//! - [`paths`], [`method`]: the HTTP interface.
//! - [`lane`], [`network`], [`cluster`]: bodies of requests and answers; [`event`]: events that a client polls.
//! - [`failure`]: the body of an error, and the codes of errors.
//! - [`sequence`]: the numbers that order changing requests.
//! - [`limits`]: bounds that a client meets.
//! - [`client`]: a blocking HTTP client: one connection, one order of requests.
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
