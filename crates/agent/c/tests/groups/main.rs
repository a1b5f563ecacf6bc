// SPDX-License-Identifier: Apache-2.0
//! Members in C, in namespaces with real agents.

#[path = "../c_program/library.rs"]
mod library;
mod root_calls;
mod root_lines;
mod world;
