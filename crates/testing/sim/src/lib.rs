// SPDX-License-Identifier: Apache-2.0
//! Worlds in which what Fide promises is put to the test, by seed.
//!
//! - [`network`]: packets through the queues of a planned network, by a schedule that the caller chooses.
//! - [`scenario`]: networks and requests at random.
//! - [`adversary`]: schedules meant to make a packet as late as the network allows.
//! - [`cluster`]: whole clusters, with the real detector and the real agreement.
//!
//! **Invariant:** no second implementation of what is tested: nothing here knows how a bound is computed.
#![forbid(unsafe_code)]

pub mod adversary;
pub mod cluster;
pub mod network;
pub mod scenario;
