// SPDX-License-Identifier: Apache-2.0
//! Presents what the lab found, to people and to programs.
//!
//! - [`run`]: jitter runs, as an HTML page and as JSON.
//! - [`plan`]: a plan, as an SVG drawing and as JSON.
//! - [`units`]: numbers with the unit that fits; [`text`]: strings that are safe to show.
//!
//! **Invariant:** no files, clocks or randomness: the same input gives the same bytes. Every string from a
//! log, a file or a command line reaches a page or a drawing through the escaper in [`text`].
#![forbid(unsafe_code)]

pub mod plan;
pub mod run;
pub mod text;
pub mod units;
