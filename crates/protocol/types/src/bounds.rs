// SPDX-License-Identifier: Apache-2.0
//! How many there can be of what. The headers of the BPF programs are generated from these.

/// Hosts of a cluster; ids are `1..=MAX_HOSTS`.
pub const MAX_HOSTS: usize = 64;
/// Processes of one host that can be watched; slots are `0..MAX_PROCESSES`.
pub const MAX_PROCESSES: usize = 64;
/// The slot that means "the host itself".
pub const HOST_SLOT: u8 = 0xff;
/// Redundant network planes (the two trees of FiDe §3.3).
pub const MAX_PLANES: usize = 2;
/// Client sessions of one agent.
pub const MAX_CLIENTS: usize = 64;
/// Bytes of the name of a host or a process.
pub const MAX_NAME: usize = 31;
/// UDP port of heartbeats, unless the configuration has another.
pub const DEFAULT_PORT: u16 = 7411;
/// Bytes of the largest UDP payload at an MTU of 1500.
pub const PAYLOAD_MAX: usize = 1472;
/// Bytes of the largest piggybacked message (FiDe §3.1).
pub const PIGGYBACK_MAX: usize = 1418;

/// A set of hosts, of processes of one host or of clients is one 64-bit word.
const _: () = assert!(MAX_HOSTS == 64 && MAX_PROCESSES == 64 && MAX_CLIENTS == 64);
