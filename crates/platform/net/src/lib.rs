// SPDX-License-Identifier: Apache-2.0
//! The periodic lane on a real host (X-Lane §4, FiDe §3.2 and §5).
//!
//! - [`interface`]: which network interface holds an address, and its hardware address.
//! - [`link`]: sending a payload on one plane, over AF_PACKET or UDP, and receiving over either where
//!   the receive program of `fide-bpf` cannot be attached.
//! - [`pace`]: waiting until a point in time or until something arrives, by sleeping or by spinning.
//! - [`service`]: the contract of a lane at its hosts: one packet per period out, each told once in.
//! - [`isolation`]: what keeps other work off the loop's core, and what of it this host granted.
//! - [`jitter`]: the bound that a timeout stands on, from measurements.
//!
//! **Invariant:** no detector policy: this crate does not know what a heartbeat means.

pub mod interface;
pub mod isolation;
pub mod jitter;
pub mod link;
pub mod pace;
pub mod service;

/// CLOCK_MONOTONIC_RAW in nanoseconds: what a detector counts on, as nobody slews it (docs/clocks.md).
#[must_use]
pub fn raw_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicRaw);
    // CLOCK_MONOTONIC_RAW is never negative.
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// CLOCK_MONOTONIC in nanoseconds, the only clock of the lane (FiDe §5).
#[must_use]
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // CLOCK_MONOTONIC is never negative.
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}
