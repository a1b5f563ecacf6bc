// SPDX-License-Identifier: Apache-2.0
//! The C ABI of groups: what `include/fide_group.h` declares, [`fide_group::Member`] as functions. It is part
//! of `libfide`, which the crate `fide-c` builds.
//!
//! A crate of its own, so that `fide-group` forbids `unsafe` code.
//!
//! | module | what it holds |
//! |---|---|
//! | `handle` | a member behind a pointer; one thread at a time |
//! | `open` | options checked; a member made and ended |
//! | `log` | waiting, proposals, decisions |
//! | `state` | the service's state, given to others and taken over |
//! | `status` | who leads, who is a member, what is waited for |
//! | `types` | structs and enums |
//! | `failure` | errors of groups as numbers |
//!
//! No panic crosses the boundary, and a handle in which one happened refuses every further call.

mod failure;
mod handle;
mod log;
mod open;
mod state;
mod status;
mod types;

pub use handle::FideGroup;
pub use log::*;
pub use open::*;
pub use state::*;
pub use status::*;
pub use types::*;

#[cfg(test)]
mod tests;
