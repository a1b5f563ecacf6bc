// SPDX-License-Identifier: Apache-2.0
//! The real program on this machine alone: its command line, and agents and controllers over loopback. All in
//! one binary, which is linked only once. Tests that need namespaces are in `end_to_end`, except for those
//! that share helpers with these; they are named `root_` too.

mod agents;
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
mod pace_cli;
mod plan_cli;
mod rack_cli;
mod windows;
