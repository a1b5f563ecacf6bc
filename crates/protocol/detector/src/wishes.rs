// SPDX-License-Identifier: Apache-2.0
//! Who watches whom: watches of local clients, which the subject's host learns of, and watches of peers.

use crate::carry::Carry;
use crate::types::Target;
use fide_types::{HostId, Name};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Watches that this host can hold.
pub const WISHES_MAX: usize = 1024;
/// Watches of peers that are remembered, so that each is reported once.
pub const REQUESTS_MAX: usize = 1024;

/// A watch of a local client, with the host or a process as its subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wish {
    pub host: HostId,
    pub process: Option<Name>,
    pub watcher_slot: u8,
    pub timeout_us: u32,
    pub pbsize: u16,
    pub carry: Carry,
    /// How often it was asked for and not taken back.
    pub watchers: u32,
}

impl Wish {
    fn is(&self, target: Target, watcher_slot: u8) -> bool {
        (self.host, self.process, self.watcher_slot) == (target.host, target.process, watcher_slot)
    }
}

/// The watches of local clients, at most [`WISHES_MAX`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Wishes(Vec<Wish>);

impl Wishes {
    pub(crate) fn new() -> Wishes {
        Wishes(Vec::with_capacity(WISHES_MAX))
    }

    /// After a snapshot: makes room for as many as there will ever be.
    pub(crate) fn reserve(&mut self) {
        self.0.reserve_exact(WISHES_MAX.saturating_sub(self.0.len()));
    }

    /// One watcher more for a wish that there is already; it then has the larger grant. False if there is
    /// none yet.
    pub(crate) fn add_watcher(&mut self, target: Target, watcher_slot: u8, granted_pbsize: u16) -> bool {
        let Some(wish) = self.0.iter_mut().find(|wish| wish.is(target, watcher_slot)) else { return false };
        wish.watchers += 1;
        if granted_pbsize > wish.pbsize {
            wish.pbsize = granted_pbsize;
            wish.carry = Carry::Pending;
        }
        true
    }

    /// False at the bound.
    pub(crate) fn push(&mut self, wish: Wish) -> bool {
        let has_room = self.0.len() < WISHES_MAX;
        if has_room {
            self.0.push(wish);
        }
        has_room
    }

    /// Takes one watcher away, and with the last one the wish. False if there is no such wish.
    pub(crate) fn remove_watcher(&mut self, target: Target, watcher_slot: u8) -> bool {
        let Some(at) = self.0.iter().position(|wish| wish.is(target, watcher_slot)) else { return false };
        self.0[at].watchers -= 1;
        if self.0[at].watchers == 0 {
            self.0.swap_remove(at);
        }
        true
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn at(&self, at: usize) -> &Wish {
        &self.0[at]
    }

    pub(crate) fn at_mut(&mut self, at: usize) -> &mut Wish {
        &mut self.0[at]
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Wish> {
        self.0.iter_mut()
    }
}

/// A watch of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    pub host: HostId,
    pub incarnation: u32,
    pub watcher_slot: u8,
    pub slot: u8,
    pub timeout_us: u32,
    pub pbsize: u16,
}

/// What [`Requests::insert`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inserted {
    /// It was known.
    Known,
    New,
    /// It is new, and the table was at its bound: the oldest one is forgotten.
    NewForOldest,
}

/// The watches of peers, at most [`REQUESTS_MAX`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Requests(VecDeque<Request>);

impl Requests {
    pub(crate) fn new() -> Requests {
        Requests(VecDeque::with_capacity(REQUESTS_MAX))
    }

    /// After a snapshot: makes room for as many as there will ever be.
    pub(crate) fn reserve(&mut self) {
        self.0.reserve_exact(REQUESTS_MAX.saturating_sub(self.0.len()));
    }

    /// Remembers a watch; one of the same watcher and subject takes its place.
    pub(crate) fn insert(&mut self, request: Request) -> Inserted {
        let key = |r: &Request| (r.host, r.watcher_slot, r.slot);
        match self.0.iter_mut().find(|known| key(known) == key(&request)) {
            Some(known) if *known == request => return Inserted::Known,
            Some(known) => *known = request,
            None => {
                let is_full = self.0.len() == REQUESTS_MAX;
                if is_full {
                    self.0.pop_front();
                }
                self.0.push_back(request);
                if is_full {
                    return Inserted::NewForOldest;
                }
            }
        }
        Inserted::New
    }
}
