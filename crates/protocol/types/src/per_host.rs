// SPDX-License-Identifier: Apache-2.0
//! One value for each host.

use crate::HostId;
use crate::{HostSet, MAX_HOSTS};
use serde::{Deserialize, Serialize};
use std::ops::{Index, IndexMut};

/// One value for each host of a cluster, indexed by host id (`1..=hosts`).
///
/// Indexing with an id outside of that range panics, as for a slice; ids that come from outside are looked up with
/// [`PerHost::get`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PerHost<T>(Box<[T]>);

impl<T> PerHost<T> {
    /// `of(id)` for each of the hosts `1..=hosts`.
    ///
    /// # Panics
    /// With more than [`MAX_HOSTS`].
    pub fn new(hosts: usize, mut of: impl FnMut(HostId) -> T) -> Self {
        assert!(hosts <= MAX_HOSTS, "{hosts} hosts, at most {MAX_HOSTS}");
        Self((1..=hosts as u16).map(&mut of).collect())
    }

    /// The value of host `id`, if there is such a host.
    #[must_use]
    pub fn get(&self, id: HostId) -> Option<&T> {
        self.0.get(usize::from(id).checked_sub(1)?)
    }

    /// As [`PerHost::get`], to be changed.
    #[must_use]
    pub fn get_mut(&mut self, id: HostId) -> Option<&mut T> {
        self.0.get_mut(usize::from(id).checked_sub(1)?)
    }

    /// Each host's id and value, by ascending id.
    pub fn iter(&self) -> impl Iterator<Item = (HostId, &T)> {
        (1u16..).zip(&self.0)
    }

    /// As [`PerHost::iter`], to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (HostId, &mut T)> {
        (1u16..).zip(&mut self.0)
    }

    /// The values alone, by ascending host id.
    #[must_use]
    pub fn values(&self) -> &[T] {
        &self.0
    }

    /// As [`PerHost::values`], to be changed.
    pub fn values_mut(&mut self) -> &mut [T] {
        &mut self.0
    }

    /// How many hosts there are.
    #[must_use]
    pub fn hosts(&self) -> usize {
        self.0.len()
    }

    /// The hosts whose value satisfies `wanted`.
    #[must_use]
    pub fn hosts_where(&self, mut wanted: impl FnMut(&T) -> bool) -> HostSet {
        self.iter().filter(|(_, value)| wanted(value)).map(|(id, _)| id).collect()
    }
}

impl<T> Index<HostId> for PerHost<T> {
    type Output = T;

    fn index(&self, id: HostId) -> &T {
        &self.0[usize::from(id) - 1]
    }
}

impl<T> IndexMut<HostId> for PerHost<T> {
    fn index_mut(&mut self, id: HostId) -> &mut T {
        &mut self.0[usize::from(id) - 1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_begin_at_one() {
        let mut values = PerHost::new(3, |id| id * 10);
        values[2] = 7;
        assert_eq!((values[1], values[2], values[3]), (10, 7, 30));
        assert_eq!((values.get(0), values.get(3), values.get(4)), (None, Some(&30), None));
        assert_eq!(values.iter().map(|(id, _)| id).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(values.hosts_where(|value| *value >= 10).iter().collect::<Vec<_>>(), [1, 3]);
    }
}
