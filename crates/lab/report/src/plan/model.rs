// SPDX-License-Identifier: Apache-2.0
//! What goes in.

use fide_planner::{Planner, Request, file::Generator, odds::Rates};

/// A request that was not granted.
#[derive(Clone, PartialEq, Debug)]
pub struct Refused {
    pub request: Request,
    /// What the planner said.
    pub why: String,
}

/// A planner, and what it does not know itself.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    pub planner: &'a Planner,
    pub rates: Rates,
    /// What made the topology.
    pub generator: Option<&'a Generator>,
    pub refused: &'a [Refused],
}

impl<'a> From<&'a Planner> for Plan<'a> {
    /// With the published rates of failure, and nothing refused.
    fn from(planner: &'a Planner) -> Self {
        Self { planner, rates: Rates::default(), generator: None, refused: &[] }
    }
}
