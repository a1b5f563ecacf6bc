// SPDX-License-Identifier: Apache-2.0
//! Changes settings at run time, so that they can be restored.
//!
//! Every change is stored in a [`journal`] on disk before it is made, with the exact bytes of the old value.
//! [`undo`] restores the old values, in reverse order, whatever happened in between: a change that was
//! interrupted is distinguished from one that was made, and a value that somebody else has set since is left
//! alone.
//!
//! Two things are never done: `sched_rt_runtime_us` is not touched (-1 can hang a kernel), and only the agent
//! holds `/dev/cpu_dma_latency`, as long as it runs.

pub mod journal;
mod plan;
mod target;
mod undo;

use std::{fmt, io};

pub use plan::{Change, Left, Options, Plan, plan};
pub use target::{Form, Target};
pub use undo::{Restored, Undone, undo};

use crate::doctor::Host;
use journal::{Journal, JournalError};

/// The outcome of one change.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It is in force.
    Applied,
    /// Somebody had made it since the plan was made.
    Already,
    /// The kernel or a driver refused it; everything is as it was.
    Refused(String),
    /// The kernel or a driver set another value instead; `undo` restores it anyway.
    Otherwise(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Applied => write!(f, "applied"),
            Self::Already => write!(f, "was so already"),
            Self::Refused(why) => write!(f, "refused: {why}"),
            Self::Otherwise(value) => write!(f, "became {value} instead"),
        }
    }
}

/// Why nothing, or not everything, was changed.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// Makes the changes of `plan`, each after it is stored in the journal. Returns the outcomes, in order.
///
/// # Errors
/// If the journal cannot be written; then nothing more is changed.
pub fn apply(host: &Host<'_>, plan: &Plan, journal: &mut Journal) -> Result<Vec<Outcome>, TuneError> {
    plan.changes.iter().map(|change| apply_one(host, change, journal)).collect()
}

fn apply_one(host: &Host<'_>, change: &Change, journal: &mut Journal) -> Result<Outcome, TuneError> {
    let target = &change.target;
    let before = match target.read(host.machine) {
        Ok(before) => before,
        Err(error) => return Ok(Outcome::Refused(error.to_string())),
    };
    if change.to.iter().any(|to| target.same(to, &before)) {
        return Ok(Outcome::Already);
    }
    let number = journal.begin(change, &before, target.way_back(&before))?;
    let mut refused = None;
    for to in &change.to {
        refused = target.write(host.machine, to).err();
        if refused.is_none() {
            break;
        }
    }
    let now = target.read(host.machine);
    journal.finish(number, now.as_deref().unwrap_or_default())?;
    Ok(match (refused, now) {
        (Some(error), _) if change.id == "irq-affinity" && managed(&error) => {
            Outcome::Refused(format!("{error}: its driver keeps it; isolcpus=managed_irq at boot"))
        }
        (Some(error), _) => Outcome::Refused(error.to_string()),
        (None, Ok(now)) if change.to.iter().any(|to| target.same(to, &now)) => Outcome::Applied,
        (None, Ok(now)) => Outcome::Otherwise(target.show(&now)),
        (None, Err(error)) => Outcome::Otherwise(format!("unknown: {error}")),
    })
}

/// An interrupt whose cores the kernel chose for its driver, or that cannot be moved at all.
fn managed(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EIO))
}

#[cfg(test)]
mod tests;
