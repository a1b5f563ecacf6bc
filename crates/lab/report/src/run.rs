// SPDX-License-Identifier: Apache-2.0
//! One or several runs of the jitter bench.
//!
//! - [`Report`], [`Run`]: the input. The analysis is not done here; parts that were not analysed are `None`,
//!   and the report says so.
//! - [`render()`]: one HTML page, for people. It needs no other file and no network, and only its menus need
//!   its script.
//! - [`to_json`]: the same for programs, times in ns.

mod figures;
mod html;
mod json;
mod measures;
mod model;
mod page;
mod plot;
mod scale;

pub use json::{JSON_VERSION, to_json};
pub use model::{Blame, CulpritTotal, Disturbance, FamilyText, LatePacket, Report, Run, Shows, UNKNOWN, stamp_place};
pub use page::render;

#[cfg(test)]
mod tests;
