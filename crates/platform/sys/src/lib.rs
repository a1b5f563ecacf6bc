// SPDX-License-Identifier: Apache-2.0
//! What every program here asks of its kernel.
//!
//! - [`bounded`]: files, read up to a bound.
//! - [`departure`]: datagrams with a time at which they are to leave.
//! - [`clock`]: the clocks leases are counted on, and what the distances between them say.
//! - [`ethtool`]: what an interface's driver says about itself.
//! - [`interface`]: which network interface holds an address, and its hardware address.
//! - [`seqpacket`]: whole messages with descriptors between programs of one host.
//! - [`tcp`]: which connection a socket is an end of.
//!
//! **Invariant:** it asks, and changes nothing of the host, but for [`ethtool::Command::SetCoalesce`] and the files of a
//! [`seqpacket::Listener`].

pub mod bounded;
pub mod clock;
pub mod departure;
pub mod ethtool;
pub mod interface;
pub mod key_file;
pub mod seqpacket;
pub mod tcp;
