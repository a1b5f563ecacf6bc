// SPDX-License-Identifier: Apache-2.0
//! Which client watches which process or host.

use fide_types::{ClientSet, HostId, MAX_HOSTS, MAX_PROCESSES, Name, ProcessRef, host_index};

use crate::frozen::{WATCHES_MAX, Watch};

/// All watches, and for each subject the clients that watch it.
#[derive(Debug)]
pub(super) struct Watches {
    list: Vec<Watch>,
    next_id: u32,
    /// The last entry of a row is the host itself.
    clients: PerSubject,
}

impl Watches {
    pub(super) fn new() -> Self {
        Self { list: Vec::with_capacity(WATCHES_MAX), next_id: 1, clients: PerSubject::new() }
    }

    /// All watches, and the next id, for the agent that takes over.
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
    pub(super) fn add(&mut self, client: u8, host: HostId, name: Option<Name>, watcher_slot: u8) -> Option<Watch> {
        if self.list.len() == WATCHES_MAX {
            return None;
        }
        let watch = Watch { id: self.next_id, client, host, name, watcher_slot };
        // 0 means "none" in an event record.
        self.next_id = self.next_id.checked_add(1).unwrap_or(1);
        self.list.push(watch);
        Some(watch)
    }

    /// Removes the watch `id` of `client`.
    pub(super) fn remove(&mut self, client: u8, id: u32) -> Option<Watch> {
        let position = self.list.iter().position(|watch| watch.client == client && watch.id == id)?;
        Some(self.list.swap_remove(position))
    }

    /// Removes any one watch of `client`.
    pub(super) fn pop_of(&mut self, client: u8) -> Option<Watch> {
        let position = self.list.iter().position(|watch| watch.client == client)?;
        Some(self.list.swap_remove(position))
    }

    /// The watches of a subject.
    pub(super) fn of(&self, host: HostId, name: Option<Name>) -> impl Iterator<Item = Watch> + '_ {
        self.list.iter().copied().filter(move |watch| watch.host == host && watch.name == name)
    }

    /// The watch `id` of `client`.
    pub(super) fn by_id(&self, client: u8, id: u32) -> Option<Watch> {
        self.list.iter().copied().find(|watch| watch.client == client && watch.id == id)
    }

    /// How many watches there are.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// The watch at a position below [`Watches::len`].
    pub(super) fn at(&self, position: usize) -> Watch {
        self.list[position]
    }

    /// The clients that watch a subject.
    pub(super) fn clients(&self, subject: ProcessRef) -> ClientSet {
        self.clients.get(subject)
    }

    /// Recomputes which clients watch the subject, which is called `name`.
    pub(super) fn assign(&mut self, subject: ProcessRef, name: Option<Name>) -> ClientSet {
        let clients = self.of(subject.host, name).map(|watch| watch.client).collect();
        *self.clients.get_mut(subject) = clients;
        clients
    }
}

/// A set of clients for each process slot of each host, and for each host.
#[derive(Debug)]
pub(super) struct PerSubject(Box<[[ClientSet; MAX_PROCESSES + 1]; MAX_HOSTS]>);

impl PerSubject {
    pub(super) fn new() -> Self {
        Self(Box::new([[ClientSet::EMPTY; MAX_PROCESSES + 1]; MAX_HOSTS]))
    }

    fn column(subject: ProcessRef) -> usize {
        if subject.is_host() { MAX_PROCESSES } else { usize::from(subject.slot) }
    }

    pub(super) fn get(&self, subject: ProcessRef) -> ClientSet {
        self.0[host_index(subject.host)][Self::column(subject)]
    }

    pub(super) fn get_mut(&mut self, subject: ProcessRef) -> &mut ClientSet {
        &mut self.0[host_index(subject.host)][Self::column(subject)]
    }

    /// Takes a client out of all sets.
    pub(super) fn forget(&mut self, client: u8) {
        self.0.as_flattened_mut().iter_mut().for_each(|clients| clients.remove(client));
    }
}

#[cfg(test)]
mod tests {
    use fide_types::HOST_SLOT;

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
        assert_eq!(watches.assign(ProcessRef::new(2, 0), name("db")), [3, 5].into_iter().collect());
        assert_eq!(watches.assign(ProcessRef::of_host(2), None), ClientSet::only(5));
        assert_eq!(
            watches.assign(ProcessRef::new(2, 0), name("web")),
            ClientSet::EMPTY,
            "another process sits there now"
        );
        assert_eq!(watches.clients(ProcessRef::of_host(2)), ClientSet::only(5));
    }

    #[test]
    fn watches_are_bounded_and_ids_never_zero() {
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
