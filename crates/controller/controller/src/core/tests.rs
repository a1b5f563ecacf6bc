// SPDX-License-Identifier: Apache-2.0
//! The controller's decisions against switches that carry out, refuse, or forget; no network, no clock.

mod answers;
mod clusters;
mod contracts;
mod recovery;
mod refused;
mod world;
