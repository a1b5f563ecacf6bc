// SPDX-License-Identifier: Apache-2.0
//! A plan: a topology, the requests that were granted or refused, and their trees.
//!
//! - [`Plan`]: the input: a planner, and what the planner itself does not know.
//! - [`Figures`]: everything that is reported about it, computed once, for text, JSON and drawing.
//! - [`to_json`]: for programs.
//! - [`draw`], [`draw_before_after`]: one SVG, for people. It needs no other file, no script and no special
//!   font.

mod draw;
mod figures;
mod json;
mod model;
mod svg;

pub use draw::{DrawError, DrawOptions, ONLY_MAX, PANELS_MAX, draw, draw_before_after};
pub use figures::{CableFigures, Figures, LinkFigures, RequestFigures, TreeFigures};
pub use json::{FORMAT, VERSION, to_json};
pub use model::{Plan, Refused};

#[cfg(test)]
mod tests;
