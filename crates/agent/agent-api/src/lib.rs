// SPDX-License-Identifier: Apache-2.0
//! Everything that crosses the boundary between an agent and its clients. Both sides use these types and no
//! others.
//!
//! - [`protocol`]: requests and replies, over the agent's socket.
//! - [`status`]: an agent's report about itself, its peers and its clients.
//! - [`table`]: the alive table: the agent's knowledge, in memory that clients read without a system call.
//! - [`session`]: the memory that one client shares with its agent: beat counter, outboxes, inbox.
//! - [`event`]: the record of an event, as it is stored in an inbox or a BPF ring buffer.
//!
//! **Invariant:** nothing here decides anything, and nothing here waits.

pub mod event;
pub mod protocol;
pub mod session;
pub mod status;
pub mod table;
