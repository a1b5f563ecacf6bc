// SPDX-License-Identifier: Apache-2.0
//! The agreement protocol of a world's members.

use fide_agreement::{Hsuc, Huc, Links, Start, Trust, hsuc, huc};

use super::plan::Plan;

/// Bytes of an instance's value.
const VALUE_MAX: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name {
    Hsuc,
    /// Over the detectors' heartbeats.
    Huc,
}

/// A protocol, as a world uses it.
pub(super) trait Protocol: Start + Clone {
    /// The protocol sends over heartbeats, and any member proposes.
    const RIDES: bool;

    fn setting(plan: &Plan) -> Self::Setting;
}

impl Protocol for Hsuc {
    const RIDES: bool = false;

    fn setting(plan: &Plan) -> hsuc::Setting {
        hsuc::Setting { window: plan.window, value_max: VALUE_MAX, links: Links::Lossy }
    }
}

impl Protocol for Huc {
    const RIDES: bool = true;

    fn setting(_: &Plan) -> huc::Setting {
        huc::Setting { value_max: VALUE_MAX, trust: Trust::Lease }
    }
}
