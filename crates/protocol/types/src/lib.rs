// SPDX-License-Identifier: Apache-2.0
//! The vocabulary that all other crates share. Nothing here knows of packets, memory layouts or the kernel.
//!
//! - [`bounds`]: how many hosts, processes, planes and clients there can be. Everything that has such a bound
//!   uses these, the C headers of the BPF programs included.
//! - [`host_id`]: [`HostId`], the number of a host, and its place in a table.
//! - [`host_set`], [`client_set`]: [`HostSet`] and [`ClientSet`], sets in one word.
//! - [`per_host`]: [`PerHost`], one value for each host, indexed by its id.
//! - [`name`]: [`Name`] of a host or a process.
//! - [`process`]: [`ProcessState`] and [`Reason`]: what became of a process, and why a verdict was given.
//! - [`time`]: [`Time`], as people read it.
//! - [`trust`]: [`Trust`], [`Policy`], [`Role`]: how a cluster judges silence, and who counts.
//! - [`config_key`]: what a key of a configuration file means.
//! - [`planted`]: fault points that the simulator and the explorations arm.
//!
//! **Invariant:** no I/O, no clock, no allocation.
#![forbid(unsafe_code)]

pub mod bounds;
pub mod client_set;
pub mod config_key;
pub mod host_id;
pub mod host_set;
pub mod name;
pub mod per_host;
pub mod planted;
pub mod process;
pub mod time;
pub mod trust;

pub use bounds::{HOST_SLOT, MAX_CLIENTS, MAX_HOSTS, MAX_NAME, MAX_PLANES, MAX_PROCESSES, PAYLOAD_MAX, PIGGYBACK_MAX};
pub use client_set::ClientSet;
pub use host_id::{HostId, host_at, host_index};
pub use host_set::HostSet;
pub use name::{Name, NameError};
pub use per_host::PerHost;
pub use process::{ProcessRef, ProcessState, Reason};
pub use time::Time;
pub use trust::{Policy, Role, Trust};
