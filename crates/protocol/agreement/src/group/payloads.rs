// SPDX-License-Identifier: Apache-2.0
//! Payloads: offered to the members, proposed once all live members store them, and kept for a while after
//! decisions have named them.
//!
//! **Each payload is unique.** This module appends [`MARK_LEN`] bytes to the user's: who proposed the
//! payload, and a counter. So equal bytes that are proposed twice are two payloads, each of which is decided,
//! spread and forgotten separately.
//!
//! **Offers wait for members, not for hosts.** A host may be a member as an incarnation that is not yet known
//! to be up here, while an older incarnation dies or is still believed to live. Neither the death of the
//! older incarnation nor the start of the newer one ends the wait: otherwise a payload would be decided that
//! this member does not store.

use std::collections::VecDeque;

use fide_types::planted::{self, Planted};

use super::{
    Group,
    entry::{self, Entry},
};
use crate::{
    Refused, Start, batch,
    lease::Lease,
    transfer::{self, Identity, RoomError},
};

/// Bytes after the user's: `u16` host, `u16` 0, `u32` incarnation, `u64` count; little-endian.
pub(super) const MARK_LEN: usize = 16;

/// What this member has yet to propose.
#[derive(Debug, Clone, Default)]
pub(super) struct Pending {
    /// Entries to be proposed as soon as the protocol takes them.
    entries: VecDeque<Vec<u8>>,
    /// Payloads of this member that are offered; each is proposed once all live members store it.
    offered: Vec<Identity>,
    /// How many payloads this member has offered.
    marks: u64,
    /// Payloads that nobody seemed to need when the present view began.
    unneeded: Vec<Identity>,
}

impl Pending {
    /// Whether entries wait that go before anything else.
    pub(super) fn has_entries(&self) -> bool {
        !self.entries.is_empty()
    }

    /// Whether payloads of this member are offered that it has not proposed yet.
    pub(super) fn has_offered(&self) -> bool {
        !self.offered.is_empty()
    }

    pub(super) fn drop_entries(&mut self) {
        self.entries.clear();
    }

    /// A view has ended: its protocol returns a batch that was proposed and not decided.
    pub(super) fn take_back(&mut self, batch: &[u8]) {
        self.entries.extend(batch::values(batch).map(<[u8]>::to_vec));
    }

    /// The next view begins: of the waiting entries, values are proposed again in it; payloads are offered
    /// again first, as new members do not store them; a view that came too late is dropped.
    pub(super) fn keep_for_next_view(&mut self) {
        let offered = &mut self.offered;
        self.entries.retain(|entry| match Entry::read(entry) {
            Some(Entry::Value(_)) => !planted::is(Planted::DropsUndecided),
            Some(Entry::Payload(identity)) => {
                if !offered.contains(&identity) {
                    offered.push(identity);
                }
                false
            }
            _ => false,
        });
    }

    /// All live members store a payload: it is proposed, if this member offered it.
    fn note_spread(&mut self, identity: &Identity) {
        if let Some(at) = self.offered.iter().position(|offered| offered == identity) {
            self.offered.remove(at);
            let mut entry = vec![entry::PAYLOAD];
            identity.write(&mut entry);
            self.entries.push_back(entry);
        }
    }
}

impl<P: Start> Group<P> {
    /// Proposes a payload of any length up to the limit. It is sent to all members, decided once all live
    /// members store it, and delivered as [`Entry::Payload`]. Only a leader whose lease holds takes one.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn propose_payload(&mut self, lease: Lease, mut payload: Vec<u8>) -> Result<Identity, Refused> {
        self.settle();
        let to = self.leading(lease)?.other_hosts();
        if self.admission.is_handing_over() || self.may_have_ended() {
            return Err(Refused::Changing);
        }
        let (len, max) = (payload.len() as u64, self.config.transfer.payload_max);
        if len > max {
            return Err(Refused::Payload(RoomError::TooLong { len, max }.into()));
        }
        let count = self.pending.marks + 1;
        self.mark(&mut payload, if planted::is(Planted::TakesEqualsForOne) { 0 } else { count });
        let identity = self.transfers.offer(payload, to)?;
        self.pending.marks = count;
        self.pending.offered.push(identity);
        self.pump();
        Ok(identity)
    }

    fn mark(&self, payload: &mut Vec<u8>, count: u64) {
        payload.extend_from_slice(&self.config.me.to_le_bytes());
        payload.extend_from_slice(&[0; 2]);
        payload.extend_from_slice(&self.config.incarnation.to_le_bytes());
        payload.extend_from_slice(&count.to_le_bytes());
    }

    /// The payload that a decision names, as it was proposed. It is stored at least until the next call after
    /// that decision: a member that finds it missing delivers no such decision
    /// ([`super::Standing::Lacking`]).
    #[must_use]
    pub fn payload(&self, identity: &Identity) -> Option<&[u8]> {
        let marked = self.transfers.get(identity)?;
        marked.get(..marked.len().checked_sub(MARK_LEN)?)
    }

    /// The next payload of this member that another host refuses, and why. It is not proposed.
    pub fn poll_refused(&mut self) -> Option<(u16, Identity, transfer::Reason)> {
        let (host, identity, reason) = self.transfers.poll_refused()?;
        self.pending.offered.retain(|offered| *offered != identity);
        self.transfers.forget(&identity);
        Some((host, identity, reason))
    }

    /// Forgets what was stored for a host that joins, unless it is needed otherwise: it may be, byte for
    /// byte, what a decision names, or what is stored for another host.
    pub(super) fn forget_unneeded(&mut self, identity: &Identity) {
        if !self.needs(identity) {
            self.transfers.forget(identity);
        }
    }

    fn needs(&self, identity: &Identity) -> bool {
        self.tail.names(identity)
            || self.durable.names(identity)
            || self.pending.offered.contains(identity)
            || self.admission.needs(identity)
    }

    /// A view has begun: its members need what this member has offered. A payload that only hosts outside of
    /// the view have offered, and that no decision names, will not be proposed any more.
    pub(super) fn sort_payloads(&mut self) {
        let Some(epoch) = self.epochs.current() else { return };
        let members = epoch.other_hosts();
        for identity in &self.pending.offered {
            // Cannot fail: it is stored, as it was offered before.
            let _ = self.transfers.offer_again(identity, members);
        }
        let stored = self.transfers.stored();
        let orphans = stored.filter(|(identity, by)| by.and(members).is_empty() && !self.needs(identity));
        let orphans: Vec<Identity> = orphans.map(|(identity, _)| *identity).collect();
        // Not before the next view: a leader that was a view ahead may have proposed it in this one, and
        // crashed since.
        for identity in orphans.iter().filter(|identity| self.pending.unneeded.contains(identity)) {
            self.transfers.forget(identity);
        }
        self.pending.unneeded = orphans;
    }

    /// Handles payloads that have spread, arrived or gone missing, and proposes waiting entries as far as
    /// there is room.
    pub(super) fn pump(&mut self) {
        while let Some(identity) = self.transfers.poll_spread() {
            self.pending.note_spread(&identity);
        }
        while let Some(identity) = self.transfers.poll_arrived() {
            self.joining.arrived(&identity, &mut self.transfers);
        }
        while let Some(identity) = self.transfers.poll_missing() {
            self.joining.missing(&identity);
        }
        self.enter();
        while !self.admission.is_closing()
            && let Some(entry) = self.pending.entries.pop_front()
        {
            if self.propose_entry(None, &entry) == Err(Refused::Full) {
                self.pending.entries.push_front(entry);
                break;
            }
        }
    }
}
