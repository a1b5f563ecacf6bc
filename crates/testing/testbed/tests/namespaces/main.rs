// SPDX-License-Identifier: Apache-2.0
//! What needs root: namespaces, switches, victims and baselines, as the tests of other crates use them.

mod root_agents;
mod root_baselines;
mod root_fabric;
mod root_network;
