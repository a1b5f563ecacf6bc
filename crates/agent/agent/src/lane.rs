// SPDX-License-Identifier: Apache-2.0
//! A program's lane, as the control thread hands it to the loop and takes it back.

use std::sync::{Arc, atomic::AtomicU64};

use fide_lane::Outlet;
use fide_net::link::Sender;
use fide_types::{ClientSet, MAX_PLANES, Name};

/// Counts of a lane's sent packets, for the thread that reports them.
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
