// SPDX-License-Identifier: Apache-2.0
//! The agent of one host: detector, lane and BPF programs joined, and the clients that use them.
//!
//! Two threads. The *loop* ([`engine`]) is pinned and does everything that must be on time; the
//! *control thread* ([`control`]) serves the Unix socket, holds pidfds, keeps the [`journal`]. They
//! meet in three bounded queues ([`command`]).
//!
//! **Invariant:** no protocol: what a packet means and who is dead is `fide-detector`'s alone.

pub mod cgroup;
pub mod clock;
pub mod command;
pub mod config;
pub mod control;
pub mod engine;
pub mod excluded;
pub mod fault;
pub mod frozen;
pub mod handover;
pub mod incarnation;
pub mod journal;
pub mod key;
pub mod lane;
pub mod metrics;
mod mtu;
pub mod names;
pub mod notify;
pub mod pidns;
pub mod privileges;
pub mod process;
pub mod promise;
pub mod pulse;
pub mod rungs;
pub mod signals;
pub mod snapshot;
pub mod socket;
mod start;
pub mod status;
pub mod subuid;
pub mod timeout;
pub mod tree_report;
pub mod trees;
pub mod vote;

pub use start::{Checked, OpenWindows, Options, StartError, check, run};
