// SPDX-License-Identifier: Apache-2.0
//! The command line as somebody meets it who uses it for the first time: what it refuses, in which words, with which code.

mod check;
mod codes;
mod common;
mod controller_check;
mod cut_off;
mod denied;
mod explained;
mod full_output;
mod odd_agent;
mod once;
mod rule;
mod running;
