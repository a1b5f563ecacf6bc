// SPDX-License-Identifier: Apache-2.0
//! Payloads: offered, agreed on, and kept for a while after decisions have named them.
//!
//! **Each is unlike all others.** After the user's bytes come [`MARK_LEN`] of this module: who proposed them, and as its how-manieth
//! payload. So equal bytes that are proposed twice are two payloads, each of which is decided, spread and forgotten for itself.
//!
//! **Offers wait for members, not for hosts.** A host may be a member as an incarnation that is not known to be up here, while an
//! older one dies or is still thought to live. The older one's death ends no wait, and neither does that the host comes up as
//! that member: else a payload would be decided which it does not have.

use fide_types::planted::{self, Planted};

use super::{Group, entry};
use crate::{
    Refused, Start,
    lease::Lease,
    transfer::{self, Identity, RoomError},
};

/// Bytes after the user's: `u16` host, `u16` 0, `u32` incarnation, `u64` count; little-endian.
pub(super) const MARK_LEN: usize = 16;

impl<P: Start> Group<P> {
    /// A payload of any length up to the limit. It is sent to all members, and decided once all that live have it: told as
    /// [`Entry::Payload`]. Only a leader whose lease holds is asked.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn propose_payload(&mut self, lease: Lease, mut payload: Vec<u8>) -> Result<Identity, Refused> {
        self.settle();
        let epoch = self.leading(lease)?;
        let to = epoch.view.hosts_of(epoch.others());
        let (len, max) = (payload.len() as u64, self.config.transfer.payload_max);
        if len > max {
            return Err(Refused::Payload(RoomError::TooLong { len, max }.into()));
        }
        let count = self.marks + 1;
        self.mark(&mut payload, if planted::is(Planted::TakesEqualsForOne) { 0 } else { count });
        let identity = self.transfers.offer(payload, to)?;
        self.marks = count;
        self.offered.push(identity);
        self.pump();
        Ok(identity)
    }

    fn mark(&self, payload: &mut Vec<u8>, count: u64) {
        payload.extend_from_slice(&self.config.me.to_le_bytes());
        payload.extend_from_slice(&[0; 2]);
        payload.extend_from_slice(&self.config.incarnation.to_le_bytes());
        payload.extend_from_slice(&count.to_le_bytes());
    }

    /// A payload that a decision names, as it was proposed. It is there at least until the next call after that decision: a member
    /// that finds it missing tells no such decision ([`super::Standing::Lacking`]).
    #[must_use]
    pub fn payload(&self, identity: &Identity) -> Option<&[u8]> {
        let marked = self.transfers.get(identity)?;
        marked.get(..marked.len().checked_sub(MARK_LEN)?)
    }

    /// A payload of this member that another does not take, and why. It is not proposed.
    pub fn poll_refused(&mut self) -> Option<(u16, Identity, transfer::Reason)> {
        let (host, identity, reason) = self.transfers.poll_refused()?;
        self.offered.retain(|offered| *offered != identity);
        self.transfers.forget(&identity);
        Some((host, identity, reason))
    }

    /// What was kept for somebody who joins. It may be, byte for byte, what a decision names, or what is kept for another.
    pub(super) fn give_up(&mut self, identity: &Identity) {
        if !self.needs(identity) {
            self.transfers.forget(identity);
        }
    }

    fn needs(&self, identity: &Identity) -> bool {
        self.tail.names(identity)
            || self.offered.contains(identity)
            || self.admission.base.is_some_and(|base| base.state == *identity)
            || self.kept.contains(&Some(*identity))
    }

    /// What this member has offered, the members of the new view have to have. What only those had offered who are gone, and no
    /// decision names, nobody will propose any more.
    pub(super) fn sort_payloads(&mut self) {
        let Some(epoch) = &self.current else { return };
        let members = epoch.view.hosts_of(epoch.others());
        for identity in &self.offered {
            // It is held: it was offered before.
            let _ = self.transfers.offer_again(identity, members);
        }
        let held = self.transfers.held();
        let lost = held.filter(|(identity, by)| by.and(members).is_empty() && !self.needs(identity));
        let lost: Vec<Identity> = lost.map(|(identity, _)| *identity).collect();
        // A leader that was a view ahead may have proposed it in this one, and crashed since.
        for identity in lost.iter().filter(|identity| self.doomed.contains(identity)) {
            self.transfers.forget(identity);
        }
        self.doomed = lost;
    }

    /// What follows from payloads that are here, or are not, and from there being room again.
    pub(super) fn pump(&mut self) {
        while let Some(identity) = self.transfers.poll_spread() {
            if let Some(at) = self.offered.iter().position(|offered| *offered == identity) {
                self.offered.remove(at);
                let mut entry = vec![entry::PAYLOAD];
                identity.write(&mut entry);
                self.again.push_back(entry);
            }
        }
        while let Some(identity) = self.transfers.poll_arrived() {
            self.joining.arrived(&identity, &mut self.transfers);
        }
        while let Some(identity) = self.transfers.poll_missing() {
            self.joining.missing(&identity);
        }
        self.enter();
        while !self.admission.closing
            && let Some(entry) = self.again.pop_front()
        {
            if self.propose_entry(None, &entry) == Err(Refused::Full) {
                self.again.push_front(entry);
                break;
            }
        }
    }
}
