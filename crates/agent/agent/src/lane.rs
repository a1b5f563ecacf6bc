// SPDX-License-Identifier: Apache-2.0
//! A program's lane, as the control thread hands it to the loop and takes it back.

use std::sync::{Arc, atomic::AtomicU64};

use fide_lane::Outlet;
use fide_net::link::Sender;
use fide_types::{ClientSet, MAX_PLANES, Name};

/// What a lane has sent, for the thread that reports it.
#[derive(Debug, Default)]
pub struct LaneCounters {
    pub packets: AtomicU64,
    /// Messages dropped because they were beyond the contract.
    pub exceeded: AtomicU64,
}

/// One lane of this host.
#[derive(Debug)]
pub struct Lane {
    pub name: Name,
    pub outlet: Outlet,
    /// One for each tree, once it is known.
    pub trees: [Option<Box<Sender>>; MAX_PLANES],
    /// Whose messages are taken.
    pub clients: ClientSet,
    pub counters: Arc<LaneCounters>,
}
