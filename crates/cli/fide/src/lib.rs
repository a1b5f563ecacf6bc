// SPDX-License-Identifier: Apache-2.0
//! What the command lines `fide` and `fide-lab` have in common.
#![forbid(unsafe_code)]
#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod call;
pub mod exit;
pub mod logs;
pub mod say;
pub mod units;
