// SPDX-License-Identifier: Apache-2.0
//! What every program here asks of its kernel.
//!
//! - [`clock`]: the clocks leases are counted on, and what the distances between them say.
//! - [`interface`]: which network interface holds an address, and its hardware address.
//!
//! **Invariant:** it asks, and changes nothing.

pub mod clock;
pub mod interface;
