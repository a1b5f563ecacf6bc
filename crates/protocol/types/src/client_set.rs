// SPDX-License-Identifier: Apache-2.0
//! Sets of clients.

use serde::{Deserialize, Serialize};

/// A set of an agent's clients, `0..MAX_CLIENTS`, in one word. Other client numbers are in no set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct ClientSet(pub u64);

impl ClientSet {
    pub const EMPTY: ClientSet = ClientSet(0);

    /// This client alone.
    #[must_use]
    pub fn only(client: u8) -> ClientSet {
        ClientSet(1u64.checked_shl(u32::from(client)).unwrap_or(0))
    }

    #[must_use]
    pub fn contains(self, client: u8) -> bool {
        self.0 & Self::only(client).0 != 0
    }

    pub fn insert(&mut self, client: u8) {
        self.0 |= Self::only(client).0;
    }

    pub fn remove(&mut self, client: u8) {
        self.0 &= !Self::only(client).0;
    }

    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[must_use]
    pub fn len(self) -> u32 {
        self.0.count_ones()
    }

    #[must_use]
    pub fn union(self, other: ClientSet) -> ClientSet {
        ClientSet(self.0 | other.0)
    }

    #[must_use]
    pub fn minus(self, other: ClientSet) -> ClientSet {
        ClientSet(self.0 & !other.0)
    }

    /// Ascending.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let client = (rest != 0).then(|| rest.trailing_zeros() as u8)?;
            rest &= rest - 1;
            Some(client)
        })
    }
}

impl FromIterator<u8> for ClientSet {
    fn from_iter<I: IntoIterator<Item = u8>>(clients: I) -> ClientSet {
        let mut set = ClientSet::EMPTY;
        clients.into_iter().for_each(|client| set.insert(client));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_cannot_be_is_in_no_set() {
        let mut set: ClientSet = [0, 63].into_iter().collect();
        set.insert(u8::MAX);
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 63]);
        assert!(!set.contains(u8::MAX) && !set.contains(64) && set.contains(63));
        set.remove(63);
        assert_eq!((set, set.len()), (ClientSet::only(0), 1));
        assert_eq!(ClientSet::only(1).union(set).minus(ClientSet::only(0)), ClientSet::only(1));
    }
}
