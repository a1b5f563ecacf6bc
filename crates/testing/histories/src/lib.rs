// SPDX-License-Identifier: Apache-2.0
//! Registers replicated by real members over real agents, clients that record what they saw, faults by seed,
//! and the judgement whether the record is linearizable.
//!
//! | module | content |
//! |---|---|
//! | `plan` | the faults of a run and their times: by seed, or by name |
//! | `member` | the replicated service, as a program |
//! | `register` | the state that its log leads to |
//! | `client` | clients in a separate process, and their histories |
//! | `lines` | messages between clients, members and the run, and the format of a history |
//! | `world` | agents, members and clients on a testbed; a process that ends is restarted |
//! | `faults` | faults, and their ends |
//! | `guest` | a host that is an emulated machine: its image, its monitor, its lines |
//! | `relay` | clients' datagrams into the guest and back |
//! | `run` | one run, from its plan to its verdict |
//! | `judge` | the verdict, by porcupine (`baselines/histories`) |
//! | `report` | the results of many runs |
//!
//! Clients reach members by Unix sockets, which no cut affects: a former leader that is cut off from all
//! others still gets requests.
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
