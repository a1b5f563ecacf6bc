// SPDX-License-Identifier: Apache-2.0
//! What every program here asks of its kernel.
//!
//! - [`bounded`]: files, read up to a bound.
//! - [`clock`]: the clocks leases are counted on, and what the distances between them say.
//! - [`ethtool`]: what an interface's driver says about itself.
//! - [`interface`]: which network interface holds an address, and its hardware address.
//!
//! **Invariant:** it asks, and changes nothing, but for [`ethtool::Command::SetCoalesce`].

pub mod bounded;
pub mod clock;
pub mod ethtool;
pub mod interface;
pub mod key_file;
