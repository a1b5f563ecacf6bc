// SPDX-License-Identifier: Apache-2.0
//! How a cluster judges silence, and whose vote counts.

use serde::{Deserialize, Serialize};

/// What a timeout proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Trust {
    /// The network and the scheduler keep their bounds: silence is a crash (FiDe §2.1, §3.4).
    Network,
    /// Silence counts once the lease of the silent host has run out: a host stops acting before anybody acts
    /// on its silence.
    Lease,
}

/// Who may go on after a silence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Everyone who is left; each host judges alone (FiDe §3.4).
    Network,
    /// A majority of the last agreed view.
    Majority,
}

/// How a host takes part in views.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Monitored, and counted in majorities.
    #[default]
    Voter,
    /// Monitors others, and is neither monitored nor counted.
    Observer,
    /// A voter that runs no programs and stores its votes on disk: the third vote of two hosts.
    Witness,
}

impl Trust {
    /// As configuration files and `--json` spell it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Network => "network",
            Self::Lease => "lease",
        }
    }
}

impl Policy {
    /// As configuration files and `--json` spell it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Network => "network",
            Self::Majority => "majority",
        }
    }
}

impl Role {
    /// As configuration files and `--json` spell it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Voter => "voter",
            Self::Observer => "observer",
            Self::Witness => "witness",
        }
    }
}
