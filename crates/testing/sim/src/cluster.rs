// SPDX-License-Identifier: Apache-2.0
//! Whole clusters by seed: the real detector and the real agreement, on hosts whose clocks drift, whose
//! schedulers pause, whose links delay, lose, repeat, reorder and are cut, and which crash and come back,
//! also between two copies of one message.
//!
//! - [`plan`]: what a seed means.
//! - [`world`]: runs a plan.
//! - [`host`]: one host: clock, detector, member of the group.
//! - [`disk`]: what a crash leaves of it.
//! - [`store`]: the log of a durable group on it.
//! - [`numbers`]: incarnations, and the generations of views that have to be on disk.
//! - [`protocol`]: by which the members agree.
//! - [`state`]: what its user makes of the log.
//! - [`check`]: what must hold, at every step and at the end.
//! - [`shrink`]: a plan that fails with less.
//!
//! The same seed and the same program give the same run, event by event.

mod agent;
pub mod check;
mod client;
pub mod clock;
mod disk;
mod host;
mod machines;
mod numbers;
pub mod plan;
pub mod protocol;
mod seat;
mod service;
mod session;
pub mod shrink;
mod state;
mod store;
pub mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use check::Violation;
use fide_agreement::{Hsuc, Huc};
use plan::Plan;
use protocol::Protocol;
use world::{Stats, World};

/// A run that went wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub violation: Violation,
    /// True time of the world.
    pub at_ns: u64,
}

/// Runs a plan. `trace` gets a line for each thing that happens.
///
/// # Errors
/// [`Failure`]: what was violated first, or a panic.
pub fn run(plan: &Plan, trace: Option<&mut Vec<String>>) -> Result<Stats, Failure> {
    match plan.protocol {
        protocol::Name::Hsuc => run_by::<Hsuc>(plan, trace),
        protocol::Name::Huc => run_by::<Huc>(plan, trace),
    }
}

fn run_by<P: Protocol>(plan: &Plan, trace: Option<&mut Vec<String>>) -> Result<Stats, Failure> {
    let mut world = World::<P>::new(plan, trace.is_some());
    let ended = catch_unwind(AssertUnwindSafe(|| world.run()));
    if let Some(trace) = trace {
        *trace = world.take_trace();
    }
    let at_ns = world.now_ns();
    match ended {
        Ok(Ok(stats)) => Ok(stats),
        Ok(Err(violation)) => Err(Failure { violation, at_ns }),
        Err(panic) => {
            let said = panic.downcast_ref::<String>().cloned();
            let said = said.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            let violation = Violation { property: "no panic", text: said.unwrap_or_default() };
            Err(Failure { violation, at_ns })
        }
    }
}
