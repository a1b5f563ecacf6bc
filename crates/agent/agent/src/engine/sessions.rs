// SPDX-License-Identifier: Apache-2.0
//! The memory that open sessions share with their clients.

use fide_types::{ClientSet, MAX_CLIENTS};

use super::Engine;
use crate::command::Memory;

/// One client of this agent.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) memory: Box<Memory>,
    /// Events lost because the client did not read.
    lost: u64,
}

/// The open sessions, by client.
pub(super) struct Sessions(Box<[Option<Session>; MAX_CLIENTS]>);

impl Sessions {
    pub(super) fn new() -> Self {
        Self(Box::new([const { None }; MAX_CLIENTS]))
    }

    /// Opens a session. Returns the memory of the one before in that place, which another thread has to
    /// free.
    #[must_use]
    pub(super) fn open(&mut self, client: u8, memory: Box<Memory>, lost: u64) -> Option<Box<Memory>> {
        match self.0.get_mut(usize::from(client)) {
            Some(place) => place.replace(Session { memory, lost }).map(|before| before.memory),
            None => Some(memory),
        }
    }

    pub(super) fn close(&mut self, client: u8) -> Option<Box<Memory>> {
        Some(self.0.get_mut(usize::from(client))?.take()?.memory)
    }

    pub(super) fn get(&self, client: u8) -> Option<&Session> {
        self.0.get(usize::from(client))?.as_ref()
    }

    pub(super) fn get_mut(&mut self, client: u8) -> Option<&mut Session> {
        self.0.get_mut(usize::from(client))?.as_mut()
    }

    /// The clients whose sessions are open.
    pub(super) fn clients(&self) -> ClientSet {
        (0u8..).zip(self.0.iter()).filter(|(_, session)| session.is_some()).map(|(client, _)| client).collect()
    }

    /// A client's beat counter; `None` without a session.
    pub(super) fn beat(&self, client: u8) -> Option<u64> {
        self.get(client).map(|session| session.memory.region.beat())
    }

    /// Counts a lost event, and shows the client how many it has lost. Whether it has a session.
    pub(super) fn count_lost(&mut self, client: u8) -> bool {
        let Some(session) = self.get_mut(client) else { return false };
        session.lost += 1;
        session.memory.region.set_lost(session.lost);
        true
    }

    /// Events that each client has lost, by client.
    pub(super) fn lost(&self) -> Vec<u64> {
        self.0.iter().map(|session| session.as_ref().map_or(0, |session| session.lost)).collect()
    }
}

impl Engine {
    /// Adds a session. Returns the memory of the one before in that place, which another thread has to
    /// free.
    #[must_use]
    pub(super) fn add_session(&mut self, client: u8, memory: Box<Memory>, lost: u64) -> Option<Box<Memory>> {
        self.ports.hear(client, &memory);
        self.bells.forget(client);
        self.sessions.open(client, memory, lost)
    }
}
