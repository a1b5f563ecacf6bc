// SPDX-License-Identifier: Apache-2.0
//! By which the members of a world agree.

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

/// What a world has to know of a protocol.
pub(super) trait Protocol: Start + Clone {
    /// It has something for heartbeats, and any member proposes.
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
