// SPDX-License-Identifier: Apache-2.0
//! Code that the command lines `fide` and `fide-lab` share.
#![forbid(unsafe_code)]
#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod call;
pub mod exit;
pub mod logs;
pub mod say;
pub mod units;
