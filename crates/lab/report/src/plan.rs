// SPDX-License-Identifier: Apache-2.0
//! A plan: a topology, the requests that were granted or refused, and their trees.
//!
//! - [`Plan`]: what goes in: a planner, and what it does not know itself.
//! - [`Figures`]: all that is said about it, computed once, for text, JSON and drawing.
//! - [`to_json`]: for programs.
//! - [`draw`], [`draw_before_after`]: one SVG, for people. It needs no other file, no script and no font of its own.

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
