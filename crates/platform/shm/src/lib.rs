// SPDX-License-Identifier: Apache-2.0
//! Shared memory between an agent and its clients, and the lock-free code that makes it safe to use.
//!
//! | module | what it holds |
//! |---|---|
//! | [`region`] | memfd regions, sealed against resizing, and their mappings |
//! | [`seqlock`] | plain records with one writer and many readers |
//! | [`spsc`] | single-producer, single-consumer rings whose peer need not be trusted |
//! | [`bpf_ring`] | user-space reader of a BPF ring buffer, given only its file descriptor |
//! | [`gaps`] | how long the times between arrivals were, in buckets |
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
pub mod gaps;
#[cfg(not(loom))]
pub mod region;
