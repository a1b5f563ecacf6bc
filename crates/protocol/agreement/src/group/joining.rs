// SPDX-License-Identifier: Apache-2.0
//! Joining a group, as the host sees it that wants to be a member.
//!
//! ```text
//!  join ──► base: a state, fetched and handed to the user ──► join, with its position ──► (the members agree on a view with it)
//!                                                                   ──► welcome: the decisions since, fetched ──► member
//! ```
//!
//! Whatever is lost is asked for again. If the member that was asked dies, or no longer has what it promised,
//! another one is asked.

use std::collections::VecDeque;

use fide_types::HostId;

use crate::{
    batch,
    transfer::{Identity, Transfers},
    view::View,
};

use super::entry::{Entry, entries};

/// Resends without a chunk of what was asked for, after which another member is asked: a host that has just
/// come up is not notified of earlier deaths.
const STALE_RESENDS: u32 = 8;

/// A view with this host in it.
#[derive(Debug, Clone)]
pub(super) struct Welcome {
    /// The member that sent it.
    pub(super) by: u16,
    /// Its decisions begin after this position, ...
    pub(super) from: u64,
    /// ... and end with this one, the last before the view.
    pub(super) start: u64,
    pub(super) decisions: Identity,
    pub(super) view: View,
}

/// An offered state.
#[derive(Debug, Clone)]
struct OfferedState {
    by: u16,
    position: u64,
    state: Identity,
}

/// How far this host is on its way into the group.
#[derive(Debug, Clone, Default)]
pub(super) struct Joining {
    /// Position of the state that the user has installed.
    have: Option<u64>,
    /// The state that is being fetched or installed.
    base: Option<OfferedState>,
    /// The base has arrived, and the user has not installed it yet.
    is_installable: bool,
    /// The user has dropped its own state to take this one: a welcome for the former one comes too late.
    is_being_taken: bool,
    welcome: Option<Welcome>,
    /// Payloads that the welcome's decisions name and that have not arrived.
    lacks: Vec<Identity>,
    /// Of the welcome, once they have arrived.
    decisions: Option<VecDeque<Vec<u8>>>,
    /// Resends since a chunk came, and how many had come by then.
    stale: u32,
    chunks: u64,
}

impl Joining {
    pub(super) fn have(&self) -> Option<u64> {
        self.have
    }

    /// Whether a member has said that this host is in a view.
    pub(super) fn is_welcomed(&self) -> bool {
        self.welcome.is_some()
    }

    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.base.is_none()
    }

    /// A member offers a state.
    pub(super) fn offered(&mut self, by: u16, position: u64, state: Identity, transfers: &mut Transfers) {
        let newer = self.have.is_none_or(|have| position > have);
        if self.base.is_none() && self.welcome.is_none() && newer && transfers.fetch(state, by).is_ok() {
            self.base = Some(OfferedState { by, position, state });
        }
    }

    /// A member says that this host is in a view.
    pub(super) fn welcomed(&mut self, welcome: Welcome, transfers: &mut Transfers) {
        let fits = self.welcome.is_none() && self.have == Some(welcome.from) && !self.is_being_taken;
        if fits && transfers.fetch(welcome.decisions, welcome.by).is_ok() {
            self.welcome = Some(welcome);
            // A later state that was offered meanwhile, for another host: this one can be brought up to date.
            if let Some(base) = self.base.take() {
                transfers.forget(&base.state);
            }
            self.is_installable = false;
        }
    }

    /// A payload has arrived.
    pub(super) fn arrived(&mut self, identity: &Identity, transfers: &mut Transfers) {
        if self.base.as_ref().is_some_and(|base| base.state == *identity) {
            self.is_installable = true;
        }
        self.lacks.retain(|lacking| lacking != identity);
        let Some(welcome) = self.welcome.clone().filter(|_| self.decisions.is_none()) else { return };
        if welcome.decisions != *identity {
            return;
        }
        let Some(bytes) = transfers.get(identity) else { return };
        let decisions: VecDeque<Vec<u8>> = batch::values(bytes).map(<[u8]>::to_vec).collect();
        transfers.forget(identity);
        if welcome.from + decisions.len() as u64 != welcome.start {
            // Not what was promised: another welcome is asked for.
            self.drop_welcome();
            return;
        }
        for entry in decisions.iter().flat_map(|value| entries(value)) {
            if let Entry::Payload(payload) = entry
                && transfers.get(&payload).is_none()
                && !self.lacks.contains(&payload)
            {
                if transfers.fetch(payload, welcome.by).is_err() {
                    self.drop_welcome();
                    return;
                }
                self.lacks.push(payload);
            }
        }
        self.decisions = Some(decisions);
    }

    /// The host became a member in another way.
    pub(super) fn give_up(&mut self, transfers: &mut Transfers) {
        let joining = std::mem::take(self);
        let base = joining.base.map(|base| base.state);
        let decisions = joining.welcome.map(|welcome| welcome.decisions);
        base.iter().chain(&decisions).chain(&joining.lacks).for_each(|identity| transfers.forget(identity));
    }

    /// Another member will send another welcome. Payloads under way still arrive, so that each time fewer are
    /// left to fetch: decisions may name more payloads than can be fetched at once.
    fn drop_welcome(&mut self) {
        (self.welcome, self.decisions) = (None, None);
        self.lacks.clear();
    }

    /// As [`Joining::drop_welcome`], when nothing arrives any more from the member that sent it.
    fn drop_welcome_and_payloads(&mut self, transfers: &mut Transfers) {
        let decisions = self.welcome.as_ref().map(|welcome| welcome.decisions);
        // Otherwise they would take the places of what is fetched next.
        self.lacks.iter().chain(&decisions).for_each(|identity| transfers.forget(identity));
        self.drop_welcome();
    }

    /// To be called at each resend, with the number of chunks that have come.
    pub(super) fn note_resend(&mut self, chunks: u64, transfers: &mut Transfers) {
        self.stale = if self.chunks == chunks { self.stale + 1 } else { 0 };
        self.chunks = chunks;
        if self.stale < STALE_RESENDS {
            return;
        }
        self.stale = 0;
        if let Some(base) = self.base.take_if(|_| !self.is_installable) {
            transfers.forget(&base.state);
        }
        if self.welcome.is_some() && !self.is_complete() {
            self.drop_welcome_and_payloads(transfers);
        }
    }

    /// No member that was asked has the payload.
    pub(super) fn missing(&mut self, identity: &Identity) {
        if self.base.as_ref().is_some_and(|base| base.state == *identity) && !self.is_installable {
            self.base = None;
        }
        let lacks = self.lacks.contains(identity);
        if lacks || self.welcome.as_ref().is_some_and(|welcome| welcome.decisions == *identity) {
            self.drop_welcome();
        }
    }

    /// A host has died: what it was asked for does not arrive.
    pub(super) fn crashed(&mut self, host: HostId, transfers: &mut Transfers) {
        if let Some(base) = self.base.take_if(|base| !self.is_installable && base.by == host) {
            transfers.forget(&base.state);
        }
        if !self.is_complete() && self.welcome.as_ref().is_some_and(|welcome| welcome.by == host) {
            self.drop_welcome_and_payloads(transfers);
        }
    }

    /// The state that the user has to put in place of its own, and its position.
    pub(super) fn installable(&self) -> Option<(u64, Identity)> {
        self.base.as_ref().filter(|_| self.is_installable).map(|base| (base.position, base.state))
    }

    /// The user has a later state than the one that was offered, at this position.
    pub(super) fn move_base(&mut self, position: u64) {
        if let Some(base) = &mut self.base {
            base.position = position;
        }
    }

    /// The user replaces its state by the one that is offered: until that is done it has none.
    pub(super) fn taken(&mut self) {
        if self.base.is_some() && self.is_installable {
            (self.is_being_taken, self.have) = (true, None);
        }
    }

    /// The user cannot have the offered state: another member is asked for one.
    pub(super) fn declined(&mut self, transfers: &mut Transfers) {
        if let Some(base) = self.base.take_if(|_| self.is_installable) {
            transfers.forget(&base.state);
            (self.is_installable, self.is_being_taken) = (false, false);
        }
    }

    /// The user has installed the state.
    pub(super) fn installed(&mut self, transfers: &mut Transfers) {
        (self.is_installable, self.is_being_taken) = (false, false);
        if let Some(base) = self.base.take() {
            transfers.forget(&base.state);
            self.have = Some(base.position);
        }
    }

    fn is_complete(&self) -> bool {
        self.decisions.is_some() && self.lacks.is_empty()
    }

    /// The welcome and its decisions, once all has arrived that a member needs.
    pub(super) fn take_complete(&mut self) -> Option<(Welcome, VecDeque<Vec<u8>>)> {
        if !self.is_complete() {
            return None;
        }
        Some((self.welcome.take()?, self.decisions.take()?))
    }
}

/// Decisions that a new member was given with its welcome, until all are delivered.
#[derive(Debug, Clone, Default)]
pub(super) struct Backlog {
    undelivered: VecDeque<Vec<u8>>,
    /// The one delivered last, while the user looks at it.
    delivered: Vec<u8>,
}

impl Backlog {
    pub(super) fn new(decisions: VecDeque<Vec<u8>>) -> Self {
        Self { undelivered: decisions, delivered: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.undelivered.is_empty()
    }

    /// Delivers the next decision, which [`Backlog::delivered`] then has. False if there is none.
    pub(super) fn deliver(&mut self) -> bool {
        let Some(value) = self.undelivered.pop_front() else { return false };
        self.delivered = value;
        true
    }

    pub(super) fn delivered(&self) -> &[u8] {
        &self.delivered
    }
}
