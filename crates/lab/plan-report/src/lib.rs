// SPDX-License-Identifier: Apache-2.0
//! A plan, to be read.
//!
//! - [`Plan`]: what goes in: a planner, and what is known beside it.
//! - [`Figures`]: all that is said about it, once, for text, JSON and drawing.
//! - [`to_json`]: for programs.
//! - [`draw`], [`draw_before_after`]: one SVG, for people. It needs no other file, no script and no font of its own.
//! - [`units`]: figures with the unit that fits, and text that is safe to show.
//!
//! **Invariant:** no files, clocks or randomness: the same plan gives the same bytes. Every string reaches a drawing
//! through `svg::Text`.
#![forbid(unsafe_code)]

mod draw;
mod figures;
mod json;
mod plan;
mod svg;
pub mod units;

pub use draw::{DrawError, ONLY_MAX, PANELS_MAX, View, draw, draw_before_after};
pub use figures::{Figures, LinkFigures, RequestFigures, TreeFigures};
pub use json::{FORMAT, VERSION, to_json};
pub use plan::{Plan, Refused};

#[cfg(test)]
mod tests;
