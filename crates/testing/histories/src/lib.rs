// SPDX-License-Identifier: Apache-2.0
//! Registers replicated by real members over real agents, clients that note what they saw, faults by seed, and the judgement
//! whether what was seen is linearizable.
//!
//! | module | what it holds |
//! |---|---|
//! | `plan` | which faults hit whom and when: by seed, or by name |
//! | `member` | the replicated service, as a program |
//! | `register` | what its log makes |
//! | `client` | clients in a process of their own, and their histories |
//! | `lines` | what these tell each other, and what a history is made of |
//! | `world` | agents, members and clients on a testbed; whatever ends is started again |
//! | `faults` | faults, and their ends |
//! | `guest` | a host that is an emulated machine: its image, its monitor, its lines |
//! | `relay` | clients' datagrams into the guest and back |
//! | `run` | one run from its plan to its verdict |
//! | `judge` | the verdict, by porcupine (`baselines/histories`) |
//! | `report` | what many runs found |
//!
//! Clients reach members by Unix sockets, which no cut takes away: an old leader that is cut off from all others is still asked.
#![forbid(unsafe_code)]

pub mod client;
mod faults;
mod guest;
pub mod judge;
mod lines;
pub mod member;
pub mod plan;
mod register;
pub mod relay;
pub mod report;
pub mod run;
mod world;

/// Hidden first argument that makes the program a member.
pub const MEMBER: &str = "__member";
/// Hidden first argument that makes the program the guest's end of the relay.
pub const RELAY: &str = "__relay";
/// Hidden first argument that makes the program clients.
pub const CLIENTS: &str = "__clients";
