// SPDX-License-Identifier: Apache-2.0
//! Clients that mean harm: an agent on loopback has to serve everybody else meanwhile (docs/operate/security.md).

mod away;
mod common;
mod crowd;
mod descriptors;
mod fuzz;
mod keys;
mod registered;
mod users;
