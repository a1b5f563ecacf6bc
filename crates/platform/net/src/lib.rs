// SPDX-License-Identifier: Apache-2.0
//! The periodic lane on a real host (X-Lane §4, FiDe §3.2 and §5).
//!
//! - [`link`]: sending a payload on one plane, over AF_PACKET or UDP, and receiving over either where
//!   the receive program of `fide-bpf` cannot be attached.
//! - [`pace`]: waiting until a point in time or until something arrives, by sleeping or by spinning.
//! - [`isolation`]: what keeps other work off the loop's core, and what of it this host granted.
//! - [`jitter`]: the bound that a timeout stands on, from measurements.
//!
//! **Invariant:** no detector policy: this crate does not know what a heartbeat means.

pub mod isolation;
pub mod jitter;
pub mod link;
pub mod pace;
