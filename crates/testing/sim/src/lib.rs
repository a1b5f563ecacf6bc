// SPDX-License-Identifier: Apache-2.0
//! Simulated worlds, by seed, that test what Fide promises.
//!
//! - [`network`]: packets through the queues of a planned network, by a schedule that the caller chooses.
//! - [`scenario`]: networks and requests at random.
//! - [`adversary`]: adversarial packet schedules.
//! - [`cluster`]: whole clusters, with the real detector and the real agreement.
//!
//! **Invariant:** there is no second implementation of what is tested: no code here knows how a bound is
//! computed.
#![forbid(unsafe_code)]

pub mod adversary;
pub mod cluster;
pub mod network;
pub mod scenario;
