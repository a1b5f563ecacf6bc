// SPDX-License-Identifier: Apache-2.0
//! Ping-pong between two hosts at a fixed rate (jitter report §2): host A sends packet `id`, host B answers
//! it, and four time stamps are taken. `fide-jitter-analysis` interprets them.
//!
//! - [`packet`]: the content of a packet.
//! - [`port`]: the ways to send and receive one: UDP, AF_PACKET, XDP slot, AF_XDP, RDMA.
//! - [`ping`], [`pong`]: the loops at A and at B; [`pong::Reflector`] answers inside XDP.
//! - [`pages`]: huge pages, on request.
//! - [`setting`]: the conditions under which the measuring thread runs, and which of them could be had.
//! - [`recorder`]: what else ran on its core; [`session`]: a whole measurement, and its log.
//!
//! The loops allocate nothing, log nothing and take no lock while they measure.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

pub mod packet;
pub mod pages;
pub mod ping;
pub mod pong;
pub mod port;
pub mod recorder;
pub mod session;
pub mod setting;

/// UDP port of the bench.
pub const PORT: u16 = 7412;
/// Payload bytes of a packet (jitter report §2.3).
pub const PACKET_BYTES: usize = 1024;
/// The shortest sending interval: FiDe §6.2 found no stability below it.
pub const PERIOD_MIN_NS: u64 = 20_000;

/// A number that does not repeat by chance, for a run, a pong or a handshake.
///
/// # Errors
/// The kernel's. (So few bytes always come in one call.)
pub fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}
