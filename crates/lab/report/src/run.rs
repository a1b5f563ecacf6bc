// SPDX-License-Identifier: Apache-2.0
//! One or several runs of the jitter bench.
//!
//! - [`Report`], [`Run`]: what goes in. The analysis is not done here; what was not analysed is left `None`
//!   and said to be so.
//! - [`render()`]: one HTML page, for people. It needs no other file and no network, and nothing but its
//!   menus needs its script.
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
