// SPDX-License-Identifier: Apache-2.0
//! The real program on this machine alone: its command line, and agents and controllers over loopback. One binary, so that it is linked
//! once. What needs namespaces is in `end_to_end`, but for tests that share their helpers with these; they are named `root_` too.

mod cli_edges;
mod cli_programs;
mod controller_cli;
mod controller_processes;
mod doctor_tune;
mod hostile;
mod jitter_cli;
mod jitter_report;
mod lane_cli;
mod loopback;
mod plan_cli;
