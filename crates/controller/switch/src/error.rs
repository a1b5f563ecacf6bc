// SPDX-License-Identifier: Apache-2.0
//! Refusals by a switch, or on the way to it.

use crate::Rule;
use std::collections::BTreeMap;
use std::fmt;
use std::io;

/// A switch's refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The kernel's error number; 0 if there is none, as from OpenFlow.
    pub errno: i32,
    /// Its words: the kernel's extended acknowledgement, or a tool's message.
    pub said: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = (self.errno != 0).then(|| io::Error::from_raw_os_error(self.errno).to_string());
        match (error, self.said.is_empty()) {
            (Some(e), true) => write!(f, "{e}"),
            (Some(e), false) => write!(f, "{e} ({})", self.said),
            (None, _) => f.write_str(&self.said),
        }
    }
}

/// Why a driver did not do what it was asked to do.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// There is no such switch, or no way to it.
    #[error("cannot open {switch}: {why}")]
    Open {
        /// As it was named.
        switch: String,
        /// What was found instead, and what would be right.
        why: String,
    },
    /// The range of groups, or a group outside of it.
    #[error("{0}")]
    Range(String),
    /// The description of the lanes.
    #[error("bad lanes: {0}")]
    Lanes(String),
    /// A rule names a port that the switch does not have.
    #[error("rule {rule}: there is no port `{port}`; the switch has {have}; in force of it: {applied}")]
    NoPort {
        /// Which rule.
        rule: String,
        /// Which port.
        port: String,
        /// The switch's ports.
        have: String,
        /// What of the rule is in force; calling install again completes the rest.
        applied: String,
    },
    /// The switch refused.
    #[error("{what}: refused: {refusal}; in force of it: {applied}")]
    Refused {
        /// The rule or port, and the change.
        what: String,
        /// The switch's message.
        refusal: Refusal,
        /// What of it is in force; calling it again completes the rest.
        applied: String,
    },
    /// The switch cannot do it at all.
    #[error("{what} cannot be had here: {why}")]
    Unsupported {
        /// The unsupported request.
        what: String,
        /// Why not, and how to correct it.
        why: String,
    },
    /// A program that speaks to the switch.
    #[error("{what}: {why}")]
    Tool {
        /// The command.
        what: String,
        /// Why it did not run, or what it printed that is not understood.
        why: String,
    },
    /// A system call on the way to the switch.
    #[error("{what}: {why}")]
    Io {
        /// The action that failed.
        what: String,
        /// The kernel's answer.
        why: io::Error,
    },
}

impl DriverError {
    pub(crate) fn io(what: impl Into<String>, why: impl Into<io::Error>) -> Self {
        DriverError::Io { what: what.into(), why: why.into() }
    }

    pub(crate) fn no_port(rule: &Rule, port: &str, numbers: &BTreeMap<String, u32>) -> Self {
        let have = numbers.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        DriverError::NoPort { rule: rule.to_string(), port: port.into(), have, applied: list(&[]) }
    }

    /// The same, where this is in force.
    pub(crate) fn with_applied(mut self, changes: &[String]) -> Self {
        if let DriverError::NoPort { applied, .. } | DriverError::Refused { applied, .. } = &mut self {
            *applied = list(changes);
        }
        self
    }

    pub(crate) fn refused(what: impl Into<String>, refusal: Refusal) -> Self {
        DriverError::Refused { what: what.into(), refusal, applied: list(&[]) }
    }
}

/// For the end of a message.
pub(crate) fn list(applied: &[String]) -> String {
    if applied.is_empty() { "nothing".into() } else { applied.join(", ") }
}
