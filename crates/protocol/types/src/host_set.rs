// SPDX-License-Identifier: Apache-2.0
//! Sets of hosts.

use crate::HostId;
use crate::MAX_HOSTS;
use serde::{Deserialize, Serialize};

/// A set of host ids 1..=64, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct HostSet(pub u64);

impl HostSet {
    pub const EMPTY: HostSet = HostSet(0);

    /// This host alone.
    ///
    /// Panics unless `id` is in 1..=64.
    pub fn only(id: HostId) -> HostSet {
        HostSet(1 << (id - 1))
    }

    /// Hosts 1..=count.
    pub fn first(count: usize) -> HostSet {
        HostSet(if count >= MAX_HOSTS { u64::MAX } else { (1 << count) - 1 })
    }

    pub fn contains(self, id: HostId) -> bool {
        (1..=MAX_HOSTS as u16).contains(&id) && self.0 >> (id - 1) & 1 == 1
    }

    /// Panics unless `id` is in 1..=64.
    pub fn insert(&mut self, id: HostId) {
        self.0 |= 1 << (id - 1);
    }

    /// Panics unless `id` is in 1..=64.
    pub fn remove(&mut self, id: HostId) {
        self.0 &= !(1 << (id - 1));
    }

    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn minus(self, other: HostSet) -> HostSet {
        HostSet(self.0 & !other.0)
    }

    pub fn and(self, other: HostSet) -> HostSet {
        HostSet(self.0 & other.0)
    }

    pub fn union(self, other: HostSet) -> HostSet {
        HostSet(self.0 | other.0)
    }

    /// Ascending.
    pub fn iter(self) -> impl Iterator<Item = HostId> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let id = (rest != 0).then(|| rest.trailing_zeros() as u16 + 1)?;
            rest &= rest - 1;
            Some(id)
        })
    }
}

impl FromIterator<HostId> for HostSet {
    fn from_iter<I: IntoIterator<Item = HostId>>(ids: I) -> HostSet {
        let mut set = HostSet::EMPTY;
        ids.into_iter().for_each(|id| set.insert(id));
        set
    }
}
