// SPDX-License-Identifier: Apache-2.0
//! A module for a stock redis-server: every write of its clients is agreed on by a group of servers before it
//! is answered, survives the crash of all but one, and a new leader goes on within milliseconds.
//!
//! ```text
//!  client ── SET ──► Redis executes it ──► replies wait in Redis' buffers
//!                      │ filter and `fide.w`: what it did              ▲
//!                      ▼                                               │ the loop goes on
//!                  this turn's unit ── before the loop sleeps ──► group: stored at all live members
//!                                                                      │
//!  other replicas: Redis' own replication link ◄── units, in order ◄───┘
//! ```
//!
//! **The leader** is a Redis master. Its clients' commands run as usual, at once, and what they wrote becomes
//! one *unit* for each turn of Redis' event loop ([`unit`], [`rules`]). Redis writes replies at the end of a
//! turn; just before, this module proposes the unit and waits until it is decided. So no client sees anything
//! that the group does not hold, and there is no thread but Redis' own.
//!
//! **The others** are Redis replicas, of a master that is this module itself, at a loopback port ([`link`]):
//! it feeds them the decided units. Redis' own replication does the rest: keys do not expire on their own,
//! roles are reported as clients expect.
//!
//! | module | what it holds |
//! |---|---|
//! | [`commands`] | what a command is to the group: a read, a write, something that is refused |
//! | [`rules`], `group_read` | what a write did, as commands that do the same everywhere; the words of XREADGROUP |
//! | [`stream`], [`unit`] | the content of the log |
//! | [`written`] | keys that are written by what a follower has yet to apply |
//! | [`remark`] | what the leader says to all servers: to compare their data |
//! | [`once`] | answers to numbered requests |
//! | [`slot`] | slots of keys, for `-MOVED` |
//! | [`resp`], [`answer`] | Redis' protocol; where another server's answers end |
//! | [`link`] | the master's side of a replication link |
//! | [`settings`] | the arguments of `loadmodule`, and the files that they name |
//! | `suspended` | clients that wait for an answer of this module, which a server has to give before it becomes a replica |
//! | `module` | the parts that run inside Redis |
//!
//! **Invariant:** `unsafe` only in `module` and `redis`, where Redis' C interface is met.

pub mod answer;
pub mod commands;
pub mod link;
pub mod once;
pub mod remark;
pub mod resp;
pub mod rules;
pub mod settings;
pub mod slot;
pub mod stream;
pub mod unit;
pub mod written;

mod group_read;
mod module;
mod redis;
mod suspended;
