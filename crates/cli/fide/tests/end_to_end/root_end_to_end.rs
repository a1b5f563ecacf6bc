// SPDX-License-Identifier: Apache-2.0
//! Real agents on a testbed of namespaces, real programs that die, and real programs that watch them.

mod agents;
mod away;
mod cli;
mod clients;
mod common;
mod deaths;
mod gaps;
mod guards;
mod half_dead;
mod hangup;
mod joins;
mod logs;
mod network;
mod place;
mod refused;
mod run;
mod run_corners;
mod run_ends;
mod run_odd;
mod run_outside;
mod run_signals;
mod run_units;
mod sessions;
mod trust;
mod unequal;
mod windows;
