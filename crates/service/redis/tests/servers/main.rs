// SPDX-License-Identifier: Apache-2.0
//! Real servers in network namespaces.

mod history;
mod root_clients;
mod root_commands;
mod root_compare;
mod root_cut_off;
mod root_durable;
mod root_exec;
mod root_group;
mod root_histories;
mod root_input;
mod root_join;
mod root_libraries;
mod root_links;
mod root_listening;
mod root_once;
mod root_power_cut;
mod root_pushed;
mod root_random;
mod root_reads;
mod root_rights;
mod root_scripts;
mod root_stopped;
mod root_suite;
mod root_transfer;
mod root_versions;
mod root_waits;
mod root_words;
mod suite;
mod world;
