// SPDX-License-Identifier: Apache-2.0
//! Fide's own part of the bench.

use crate::killed::Waiting;
use fide_testbed::{Testbed, Victim};

/// Agents on every host of a testbed, and a client at host 1.
pub(crate) struct Fide {}

impl Fide {
    /// Starts the agents and connects; the error is the `why` of every figure that is missing for it.
    pub(crate) fn start(_bed: &Testbed) -> Result<Fide, String> {
        Err("the agent is not part of this build".into())
    }

    /// Has a process of host 2 join, and monitors it from host 1; what comes back waits for its verdict.
    pub(crate) fn watch(&mut self, _victim: &Victim) -> anyhow::Result<Waiting> {
        anyhow::bail!("the agent is not part of this build")
    }

    /// Isolates host 3, waits for `host_silent` at host 1, has it rejoin; gives the time from the cut, ns.
    pub(crate) fn silence(&mut self, _bed: &Testbed) -> anyhow::Result<u64> {
        anyhow::bail!("the agent is not part of this build")
    }
}
