// SPDX-License-Identifier: Apache-2.0
//! Malicious clients: an agent on loopback has to serve all others meanwhile (docs/operate/security.md).

mod away;
mod common;
mod crowd;
mod descriptors;
mod fuzz;
mod keys;
mod registered;
mod users;
