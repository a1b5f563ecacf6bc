// SPDX-License-Identifier: Apache-2.0
//! The edges of the protocol, against an agent made of a socket and memory. What a real agent does is tested
//! with the agent.

mod capi;
mod edges;
mod fake;
mod fences;
mod lanes;
