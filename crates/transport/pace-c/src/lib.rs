// SPDX-License-Identifier: Apache-2.0
//! The C ABI of X-PACE: what `include/fide_pace.h` declares, [`fide_pace_socket`] as functions of the libraries
//! `libfide_pace.so` and `libfide_pace.a`.
//!
//! A crate of its own, so that `fide-pace-socket` needs no `unsafe` code. Cargo gives the file of such a library no hash:
//! nothing depends on this crate, or it would be compiled anew each time it is built with other features.
//!
//! | module | what it holds |
//! |---|---|
//! | `handles` | endpoints and connections by number: a wrong number is an error |
//! | `endpoint` | keys; endpoints made, connected, accepted from, closed |
//! | `connection` | messages out and in; paces; changes; the end |
//! | `types` | structs and enums |
//! | `failure` | errors as numbers |
//!
//! No panic crosses the boundary.

mod connection;
mod endpoint;
mod failure;
mod handles;
mod types;

pub use connection::*;
pub use endpoint::*;
pub use types::*;

#[cfg(test)]
mod tests;
