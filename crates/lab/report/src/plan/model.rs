// SPDX-License-Identifier: Apache-2.0
//! The input.

use fide_planner::{Planner, Request, file::Generator, odds::Rates};

/// A request that was not granted.
#[derive(Clone, PartialEq, Debug)]
pub struct Refused {
    pub request: Request,
    /// The planner's reason.
    pub why: String,
}

/// A planner, and what the planner itself does not know.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    pub planner: &'a Planner,
    pub rates: Rates,
    /// The generator that made the topology, if one did.
    pub generator: Option<&'a Generator>,
    pub refused: &'a [Refused],
}

impl<'a> From<&'a Planner> for Plan<'a> {
    /// With the published rates of failure, and nothing refused.
    fn from(planner: &'a Planner) -> Self {
        Self { planner, rates: Rates::default(), generator: None, refused: &[] }
    }
}
