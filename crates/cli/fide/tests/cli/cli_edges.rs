// SPDX-License-Identifier: Apache-2.0
//! The command line for a first-time user: what it refuses, in which words, with which exit code.

mod check;
mod codes;
pub(crate) mod common;
mod controller_check;
mod cut_off;
mod denied;
mod explained;
mod full_output;
mod odd_agent;
mod once;
mod rule;
mod running;
