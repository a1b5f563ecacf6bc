// SPDX-License-Identifier: Apache-2.0
//! One condition of a host: what was found, what is wanted, and what the difference costs.

use std::fmt;

use serde::Serialize;

/// The effect of a condition on jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// It adds jitter.
    Bad,
    /// It could not be found out. It is never guessed.
    Unknown,
    Good,
    /// The condition does not exist on this host.
    NotApplicable,
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Bad => "bad",
            Self::Unknown => "unknown",
            Self::Good => "good",
            Self::NotApplicable => "n/a",
        })
    }
}

/// The part of the host that a condition belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    Core,
    Interrupts,
    Scheduler,
    Memory,
    Network,
    Kernel,
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Core => "core",
            Self::Interrupts => "interrupts",
            Self::Scheduler => "scheduler",
            Self::Memory => "memory",
            Self::Network => "network",
            Self::Kernel => "kernel",
        })
    }
}

/// Who can change a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// `fide tune --apply`, now.
    Tune,
    /// The agent, while it runs.
    Agent,
    /// The operator, now.
    Operator,
    /// The kernel's command line.
    Boot,
    /// The firmware's settings.
    Firmware,
    /// Nobody on this host.
    NotHere,
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Tune => "fide tune",
            Self::Agent => "the agent",
            Self::Operator => "by hand",
            Self::Boot => "boot parameter",
            Self::Firmware => "firmware",
            Self::NotHere => "not here",
        })
    }
}

/// One condition of this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Condition {
    /// Stable name.
    pub id: &'static str,
    pub group: Group,
    /// The interface it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    pub title: &'static str,
    pub verdict: Effect,
    /// What was found; for an unknown one, why it is not known.
    pub found: String,
    pub wanted: String,
    /// What it costs when it is bad.
    pub cost: &'static str,
    pub how: How,
    /// What `how` has to do.
    pub change: String,
}

/// The part of a condition that is the same for all hosts. `{core}`, `{others}` and `{if}` in its texts stand
/// for the loop's core, the other cores, and the interface.
pub(crate) struct Kind {
    pub(crate) id: &'static str,
    pub(crate) group: Group,
    pub(crate) title: &'static str,
    pub(crate) wanted: &'static str,
    pub(crate) cost: &'static str,
    pub(crate) how: How,
    pub(crate) change: &'static str,
}

/// The judgement of a condition on this host.
pub(crate) struct Finding {
    pub(crate) verdict: Effect,
    pub(crate) found: String,
    /// Replaces the kind's `how` and `change`.
    pub(crate) change: Option<(How, String)>,
}

impl Finding {
    pub(crate) fn new(verdict: Effect, found: impl Into<String>) -> Self {
        Self { verdict, found: found.into(), change: None }
    }

    pub(crate) fn good_if(good: bool, found: impl Into<String>) -> Self {
        Self::new(if good { Effect::Good } else { Effect::Bad }, found)
    }

    pub(crate) fn unknown(why: impl fmt::Display) -> Self {
        Self::new(Effect::Unknown, why.to_string())
    }

    pub(crate) fn not_applicable(why: impl Into<String>) -> Self {
        Self::new(Effect::NotApplicable, why)
    }

    /// Sets another way to change the condition.
    pub(crate) fn but(mut self, how: How, change: impl Into<String>) -> Self {
        self.change = Some((how, change.into()));
        self
    }
}

/// The result of a judge. Its error lets a judge use `?` on files that cannot be read.
pub(crate) type Judged = Result<Finding, Box<dyn std::error::Error>>;
