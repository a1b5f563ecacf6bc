// SPDX-License-Identifier: Apache-2.0
//! Who waits for what.

use fide_wire::{HOST_SLOT, MAX_HOSTS, MAX_PROCESSES, Name};
use serde::{Deserialize, Serialize};

/// Watches of all clients of one agent together.
pub const WATCHES_MAX: usize = fide_detector::roster::WISHES_MAX;

/// One client's wish to be told about one process or host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Watch {
    pub(super) id: u32,
    pub(super) client: u8,
    pub(super) host: u16,
    /// `None`: the host itself.
    pub(super) name: Option<Name>,
    /// The client's own process, for the subject's host to know who asks.
    pub(super) watcher_slot: u8,
}

/// All watches, and for each subject the clients that wait for it.
#[derive(Debug)]
pub(super) struct Watches {
    list: Vec<Watch>,
    next_id: u32,
    /// Bit c: client c waits for this process; the last row entry is the host itself.
    clients: Box<[[u64; MAX_PROCESSES + 1]; MAX_HOSTS]>,
}

impl Watches {
    pub(super) fn new() -> Self {
        Self {
            list: Vec::with_capacity(WATCHES_MAX),
            next_id: 1,
            clients: Box::new([[0; MAX_PROCESSES + 1]; MAX_HOSTS]),
        }
    }

    /// All of them, and the next id, for the agent that takes over.
    pub(super) fn to_parts(&self) -> (Vec<Watch>, u32) {
        (self.list.clone(), self.next_id)
    }

    /// Goes on with the watches of the agent before.
    pub(super) fn from_parts(list: Vec<Watch>, next_id: u32) -> Self {
        let mut watches = Self { next_id, ..Self::new() };
        watches.list.extend(list.into_iter().take(WATCHES_MAX));
        watches
    }

    /// Adds a watch; `None` at the bound.
    pub(super) fn add(&mut self, client: u8, host: u16, name: Option<Name>, watcher_slot: u8) -> Option<Watch> {
        if self.list.len() == WATCHES_MAX {
            return None;
        }
        let watch = Watch { id: self.next_id, client, host, name, watcher_slot };
        // 0 means "none" in an event record.
        self.next_id = self.next_id.checked_add(1).unwrap_or(1);
        self.list.push(watch);
        Some(watch)
    }

    /// Takes away the watch `id` of `client`.
    pub(super) fn remove(&mut self, client: u8, id: u32) -> Option<Watch> {
        let position = self.list.iter().position(|watch| watch.client == client && watch.id == id)?;
        Some(self.list.swap_remove(position))
    }

    /// Takes away any one watch of `client`.
    pub(super) fn pop_of(&mut self, client: u8) -> Option<Watch> {
        let position = self.list.iter().position(|watch| watch.client == client)?;
        Some(self.list.swap_remove(position))
    }

    /// The watches of a subject, by position, so that the caller may tell each while it goes on.
    pub(super) fn of(&self, host: u16, name: Option<Name>) -> impl Iterator<Item = Watch> + '_ {
        self.list.iter().copied().filter(move |watch| watch.host == host && watch.name == name)
    }

    /// The watch `id` of `client`.
    pub(super) fn by_id(&self, client: u8, id: u32) -> Option<Watch> {
        self.list.iter().copied().find(|watch| watch.client == client && watch.id == id)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// The watch at a position below [`Watches::len`].
    pub(super) fn at(&self, position: usize) -> Watch {
        self.list[position]
    }

    /// The clients that wait for a process, or with [`HOST_SLOT`] for the host.
    pub(super) fn clients(&self, host: u16, slot: u8) -> u64 {
        self.clients[usize::from(host) - 1][index(slot)]
    }

    /// Recomputes who waits for the subject that is `name` and sits in `slot`.
    pub(super) fn assign(&mut self, host: u16, slot: u8, name: Option<Name>) -> u64 {
        let bits = self.of(host, name).fold(0, |bits, watch| bits | 1u64 << watch.client);
        self.clients[usize::from(host) - 1][index(slot)] = bits;
        bits
    }
}

fn index(slot: u8) -> usize {
    if slot == HOST_SLOT { MAX_PROCESSES } else { usize::from(slot) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Option<Name> {
        Some(Name::new(text.as_bytes()).expect("a name"))
    }

    #[test]
    fn clients_follow_the_name_not_the_slot() {
        let mut watches = Watches::new();
        watches.add(3, 2, name("db"), HOST_SLOT);
        watches.add(5, 2, name("db"), HOST_SLOT);
        watches.add(5, 2, None, HOST_SLOT);
        assert_eq!(watches.assign(2, 0, name("db")), 1 << 3 | 1 << 5);
        assert_eq!(watches.assign(2, HOST_SLOT, None), 1 << 5);
        assert_eq!(watches.assign(2, 0, name("web")), 0, "another process sits there now");
        assert_eq!(watches.clients(2, HOST_SLOT), 1 << 5);
    }

    #[test]
    fn the_bound_holds_and_ids_are_never_zero() {
        let mut watches = Watches::new();
        watches.next_id = u32::MAX;
        let ids: Vec<u32> = (0..WATCHES_MAX).map(|_| watches.add(0, 1, None, HOST_SLOT).expect("room").id).collect();
        assert!(watches.add(0, 1, None, HOST_SLOT).is_none());
        assert!(!ids.contains(&0));
        assert!(watches.remove(1, ids[0]).is_none(), "another client's watch");
        assert!(watches.remove(0, ids[0]).is_some());
        while watches.pop_of(0).is_some() {}
        assert_eq!(watches.len(), 0);
    }
}
