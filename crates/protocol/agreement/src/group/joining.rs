// SPDX-License-Identifier: Apache-2.0
//! The way into a group, as the one that wants in has it.
//!
//! ```text
//!  join ──► base: a state, fetched and handed to the user ──► join, with its position ──► (the members agree on a view with it)
//!                                                                   ──► welcome: the decisions since, fetched ──► member
//! ```
//!
//! Whatever is lost is asked for again; whoever was asked and dies, or has thrown away what it promised, is left for another.

use std::collections::VecDeque;

use crate::{
    batch,
    transfer::{Identity, Transfers},
    view::View,
};

use super::entry::{Entry, entries};

/// Resends without a chunk of what was asked for: another member is asked. Of some deaths a host that has just come is not told.
const STALE_RESENDS: u32 = 8;

/// A view with this host in it.
#[derive(Debug, Clone)]
pub(super) struct Welcome {
    pub(super) by: u16,
    /// The decisions are those after this position.
    pub(super) from: u64,
    /// Up to this one, the last before the view.
    pub(super) start: u64,
    pub(super) decisions: Identity,
    pub(super) view: View,
}

#[derive(Debug, Clone)]
struct Base {
    by: u16,
    position: u64,
    state: Identity,
}

/// How far it is.
#[derive(Debug, Clone, Default)]
pub(super) struct Joining {
    have: Option<u64>,
    base: Option<Base>,
    /// The base is here, and the user was not given it yet.
    install: bool,
    welcome: Option<Welcome>,
    /// Payloads that the welcome's decisions name and that are not here.
    lacks: Vec<Identity>,
    decisions: Option<VecDeque<Vec<u8>>>,
    /// Resends since a chunk came, and how many had come by then.
    stale: u32,
    chunks: u64,
}

impl Joining {
    pub(super) fn have(&self) -> Option<u64> {
        self.have
    }

    /// A view with this host in it is on its way.
    pub(super) fn is_welcomed(&self) -> bool {
        self.welcome.is_some()
    }

    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.base.is_none()
    }

    /// Somebody offers a state.
    pub(super) fn offered(&mut self, by: u16, position: u64, state: Identity, transfers: &mut Transfers) {
        let newer = self.have.is_none_or(|have| position > have);
        if self.base.is_none() && self.welcome.is_none() && newer && transfers.fetch(state, by).is_ok() {
            self.base = Some(Base { by, position, state });
        }
    }

    /// Somebody says that this host is in.
    pub(super) fn welcomed(&mut self, welcome: Welcome, transfers: &mut Transfers) {
        let fits = self.welcome.is_none() && self.have == Some(welcome.from) && self.base.is_none();
        if fits && transfers.fetch(welcome.decisions, welcome.by).is_ok() {
            self.welcome = Some(welcome);
        }
    }

    /// A payload is here.
    pub(super) fn arrived(&mut self, identity: &Identity, transfers: &mut Transfers) {
        if self.base.as_ref().is_some_and(|base| base.state == *identity) {
            self.install = true;
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
            // Not what was promised: asked for again.
            self.begin_again();
            return;
        }
        for entry in decisions.iter().flat_map(|value| entries(value)) {
            if let Entry::Payload(payload) = entry
                && transfers.get(&payload).is_none()
                && !self.lacks.contains(&payload)
            {
                if transfers.fetch(payload, welcome.by).is_err() {
                    self.begin_again();
                    return;
                }
                self.lacks.push(payload);
            }
        }
        self.decisions = Some(decisions);
    }

    /// It is in without.
    pub(super) fn give_up(&mut self, transfers: &mut Transfers) {
        let joining = std::mem::take(self);
        let base = joining.base.map(|base| base.state);
        let decisions = joining.welcome.map(|welcome| welcome.decisions);
        base.iter().chain(&decisions).chain(&joining.lacks).for_each(|identity| transfers.forget(identity));
    }

    /// With the welcome: another member will give it. What is on its way still comes, so that each time there is less to fetch: decisions
    /// may name more payloads than can be fetched at once.
    fn begin_again(&mut self) {
        (self.welcome, self.decisions) = (None, None);
        self.lacks.clear();
    }

    /// As [`Joining::begin_again`], and nothing comes any more from whom it was asked.
    fn begin_anew(&mut self, transfers: &mut Transfers) {
        let decisions = self.welcome.as_ref().map(|welcome| welcome.decisions);
        // Else they would take the places of what is fetched next.
        self.lacks.iter().chain(&decisions).for_each(|identity| transfers.forget(identity));
        self.begin_again();
    }

    /// To be told at each resend how many chunks have come.
    pub(super) fn waits(&mut self, chunks: u64, transfers: &mut Transfers) {
        self.stale = if self.chunks == chunks { self.stale + 1 } else { 0 };
        self.chunks = chunks;
        if self.stale < STALE_RESENDS {
            return;
        }
        self.stale = 0;
        if let Some(base) = self.base.take_if(|_| !self.install) {
            transfers.forget(&base.state);
        }
        let complete = self.decisions.is_some() && self.lacks.is_empty();
        if self.welcome.is_some() && !complete {
            self.begin_anew(transfers);
        }
    }

    /// Who was asked has none of it.
    pub(super) fn missing(&mut self, identity: &Identity) {
        if self.base.as_ref().is_some_and(|base| base.state == *identity) && !self.install {
            self.base = None;
        }
        let lacks = self.lacks.contains(identity);
        if lacks || self.welcome.as_ref().is_some_and(|welcome| welcome.decisions == *identity) {
            self.begin_again();
        }
    }

    /// A host has died: what it was asked for does not come.
    pub(super) fn crashed(&mut self, host: u16, transfers: &mut Transfers) {
        if let Some(base) = self.base.take_if(|base| !self.install && base.by == host) {
            transfers.forget(&base.state);
        }
        let complete = self.decisions.is_some() && self.lacks.is_empty();
        if !complete && self.welcome.as_ref().is_some_and(|welcome| welcome.by == host) {
            self.begin_anew(transfers);
        }
    }

    /// The state that the user has to take as its own.
    pub(super) fn installable(&self) -> Option<(u64, Identity)> {
        self.base.as_ref().filter(|_| self.install).map(|base| (base.position, base.state))
    }

    pub(super) fn installed(&mut self, transfers: &mut Transfers) {
        self.install = false;
        if let Some(base) = self.base.take() {
            transfers.forget(&base.state);
            self.have = Some(base.position);
        }
    }

    /// All is here that a member needs.
    pub(super) fn complete(&mut self) -> Option<(Welcome, VecDeque<Vec<u8>>)> {
        if !self.lacks.is_empty() || self.decisions.is_none() {
            return None;
        }
        Some((self.welcome.take()?, self.decisions.take()?))
    }
}
