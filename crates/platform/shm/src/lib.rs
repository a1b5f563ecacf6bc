// SPDX-License-Identifier: Apache-2.0
//! Shared memory between an agent and its clients, and the lock-free code that makes it safe to use.
//!
//! | module | what it holds |
//! |---|---|
//! | [`region`] | memfd regions, sealed against resizing, and their mappings |
//! | [`seqlock`] | plain records with one writer and many readers |
//! | [`clock`] | the clocks a lease is counted on, and whether it has passed on any of them |
//! | [`table`] | the alive table: who lives, who is dead, until when the own host may act |
//! | [`spsc`] | single-producer, single-consumer rings whose peer need not be trusted |
//! | [`session`] | the region of one client: beat counter, outbox, inbox |
//! | [`bpf_ring`] | user-space reader of a BPF ring buffer, given only its file descriptor |
//! | [`gaps`] | how long the times between arrivals were, in buckets |
//! | [`event`] | the event record that travels through an inbox or a BPF ring buffer |
//! | [`swap`] | a value replaced under lock-free readers |
//!
//! **Invariant: no protocol knowledge.** Nothing here knows what a heartbeat is, nor decides anything.
//!
//! **Invariant: shared words are atomics.** Whatever another process may write is read as relaxed atomic words and
//! checked after it was copied, so that neither a crash in the middle of a write nor a hostile peer causes undefined
//! behaviour, a panic or an unbounded loop.
//!
//! With `--cfg loom` only the algorithms (`seqlock`, `spsc`, `swap`) are built, over loom's atomics.

mod primitive;
pub mod seqlock;
pub mod spsc;
pub mod swap;

#[cfg(not(loom))]
pub mod bpf_ring;
#[cfg(not(loom))]
pub mod clock;
#[cfg(not(loom))]
pub mod event;
#[cfg(not(loom))]
pub mod gaps;
#[cfg(not(loom))]
pub mod region;
#[cfg(not(loom))]
pub mod session;
#[cfg(not(loom))]
pub mod table;

/// Most hosts in a cluster; host ids are 1..=MAX_HOSTS.
pub const MAX_HOSTS: usize = 64;
/// Most processes of one host; slots are 0..MAX_PROCESSES.
pub const MAX_PROCESSES: usize = 64;
/// Most planes (disjoint trees).
pub const MAX_PLANES: usize = 2;
/// Longest name of a host or a process, in bytes.
pub const MAX_NAME: usize = 31;
/// The slot that means "the host itself".
pub const HOST_SLOT: u8 = 0xff;
/// Most bytes of one piggybacked message (FiDe §3.1).
pub const PIGGYBACK_MAX: usize = 1418;
