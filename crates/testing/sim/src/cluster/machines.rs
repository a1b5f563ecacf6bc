// SPDX-License-Identifier: Apache-2.0
//! The machines of a world.

use std::ops::{Index, IndexMut};

use fide_types::{HostId, PerHost, host_index};

use super::{host::Host, plan::Plan, protocol::Protocol};

/// The machines that the cluster was configured with, one for each host, and the clone of one of them.
///
/// An event names a machine by its place (`usize`), since a clone has the host id of its original. Indexing
/// with a host id (`u16`) gives the original.
pub(super) struct Machines<P: Protocol> {
    originals: PerHost<Host<P>>,
    /// The last clone; it stays here after it has ended.
    clone: Option<Host<P>>,
}

/// The place of the machine that a host was configured with.
pub(super) fn place_of(host: HostId) -> usize {
    host_index(host)
}

impl<P: Protocol> Machines<P> {
    pub(super) fn new(plan: &Plan) -> Self {
        Self { originals: PerHost::new(usize::from(plan.hosts), |id| Host::new(id, plan)), clone: None }
    }

    /// Without a clone.
    pub(super) fn originals(&self) -> &[Host<P>] {
        self.originals.values()
    }

    /// Places that are in use: `0..places()`.
    pub(super) fn places(&self) -> usize {
        self.originals.hosts() + usize::from(self.clone.is_some())
    }

    /// The place of a clone, whether or not there is one.
    pub(super) fn place_of_clone(&self) -> usize {
        self.originals.hosts()
    }

    pub(super) fn set_clone(&mut self, clone: Host<P>) {
        self.clone = Some(clone);
    }

    /// By place.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Host<P>> {
        self.originals.values().iter().chain(&self.clone)
    }

    /// By place, to be changed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Host<P>> {
        self.originals.values_mut().iter_mut().chain(&mut self.clone)
    }
}

impl<P: Protocol> Index<usize> for Machines<P> {
    type Output = Host<P>;

    fn index(&self, place: usize) -> &Host<P> {
        match self.originals.values().get(place) {
            Some(original) => original,
            None => self.clone.as_ref().expect("a clone has run"),
        }
    }
}

impl<P: Protocol> IndexMut<usize> for Machines<P> {
    fn index_mut(&mut self, place: usize) -> &mut Host<P> {
        match self.originals.values_mut().get_mut(place) {
            Some(original) => original,
            None => self.clone.as_mut().expect("a clone has run"),
        }
    }
}

impl<P: Protocol> Index<u16> for Machines<P> {
    type Output = Host<P>;

    fn index(&self, host: HostId) -> &Host<P> {
        &self.originals[host]
    }
}

impl<P: Protocol> IndexMut<u16> for Machines<P> {
    fn index_mut(&mut self, host: HostId) -> &mut Host<P> {
        &mut self.originals[host]
    }
}
