// SPDX-License-Identifier: Apache-2.0
//! What a ping-pong run tells about the hosts it ran on.
//!
//! - [`sample`]: a run with four time stamps per packet (jitter report §2.1), and the faults of its clocks.
//! - [`event`]: what ran on a core during the run.
//! - [`attribute`]: what made packets late.
//! - [`clocks`]: how the two hosts' clocks moved against each other, and stamps corrected for that.
//! - [`log`]: samples and events in a file, byte by byte; CSV.
//! - [`stats`]: the run in numbers, and the bound that it supports.
//! - [`synth`]: made-up runs with known disturbances.
//!
//! **Invariant:** no sockets, threads or clocks; randomness only from seeds.
#![forbid(unsafe_code)]

pub mod attribute;
mod baseline;
pub mod clocks;
pub mod event;
pub mod families;
pub mod log;
pub mod sample;
pub mod stats;
pub mod synth;

pub use event::{CulpritKind, Interference};
pub use log::{Ending, Log, LogError, LogReader, LogWriter, read_log};
pub use sample::{Fault, FaultKind, Host, MISSING, Restart, RunInfo, Sample, Samples, Schedule, Stamp};
pub use stats::{RunStats, StatsOptions};
