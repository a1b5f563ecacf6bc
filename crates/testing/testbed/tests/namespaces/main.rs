// SPDX-License-Identifier: Apache-2.0
//! Tests that need root: namespaces, switches, victims and baselines, as the tests of other crates use them.

mod root_agents;
mod root_baselines;
mod root_fabric;
mod root_network;
