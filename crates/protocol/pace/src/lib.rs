// SPDX-License-Identifier: Apache-2.0
//! X-PACE: messages with deadlines, in order, paced to the slowest step between two applications (A. Schmidt and others,
//! *Cross-Layer Pacing for Predictably Low Latency*).
//!
//! State machines alone: times and bytes in; packets, times and messages out. No clock, socket, thread or random source
//! is here, so the same code runs on sockets (`fide-pace-socket`) and in the simulator (`tests/sim`).
//!
//! ```text
//!  endpoint ─── set-up, keys, addresses
//!     └─ transport ─── one connection
//!           ├─ sender ──── plan, window, block ── what is sent again, and redundancy ahead
//!           ├─ receiver ── window, block ── order, deadlines
//!           ├─ flight, loss, congestion ─── what is under way, and how fast the path is
//!           ├─ clock ────────────────────── round trips, the other end's time
//!           ├─ step ─────────────────────── paces
//!           ├─ rhythm ───────────────────── when the applications send and receive next
//!           └─ numbers, packet, mtu
//! ```

#![forbid(unsafe_code)]

pub mod block;
pub mod clock;
pub mod congestion;
pub mod endpoint;
pub mod flight;
pub mod keys;
pub mod loss;
pub mod mtu;
pub mod numbers;
pub mod packet;
mod per_message;
pub mod plan;
mod pool;
pub mod receiver;
pub mod rhythm;
pub mod seal;
pub mod secure;
pub mod sender;
pub mod setup;
pub mod step;
pub mod symbol;
pub mod transport;
pub mod window;
pub mod windowed;
