// SPDX-License-Identifier: Apache-2.0
//! A network's topology, as reported by its ports.
//!
//! ```text
//!  a switch's port ── LLDP ──► the port at the other end of the cable ── heard ──► survey ──► the planner's file
//!  a host's port   ── LLDP ──►                                                       └─────► differences from another
//! ```
//!
//! - [`lldp`]: the frames.
//! - [`probe`]: sends and hears them at ports of this machine, in whatever network namespace they are.
//! - [`survey`]: cables out of what was heard where, and all that does not fit.
//! - [`figures`]: bandwidth, queue and latency of each, and where each figure is from.
//! - [`write()`]: the survey as a file of the planner.
//! - [`compare`]: differences between the cabling and a topology.
//!
//! **Invariant: does not know how a switch is driven, and changes nothing in it.** Only [`probe`] does I/O.
#![forbid(unsafe_code)]

pub mod compare;
pub mod figures;
pub mod lldp;
pub mod probe;
pub mod survey;
mod write;

pub use compare::{Difference, compare};
pub use figures::{Figure, Given, Source};
pub use survey::{Cable, End, Oddity, Survey, survey};
pub use write::write;
