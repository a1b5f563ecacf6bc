// SPDX-License-Identifier: Apache-2.0
//! Findings about the trees of other hosts: from the loop and the control thread to the thread that reports
//! them to the controller.

use fide_lane::Finding;
use fide_types::HostId;

/// A finding about a tree of another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    pub host: HostId,
    /// The lane: the label that the host gave it, `None` for its heartbeats.
    pub label: Option<u8>,
    pub plane: u8,
    pub seen: Seen,
}

/// How a tree reaches this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Not, until [`Seen::Restored`].
    Lost,
    Restored,
    /// Found by comparing copies of packets. Reported once and forgotten: it is found again if it lasts.
    Copies(Finding),
}
