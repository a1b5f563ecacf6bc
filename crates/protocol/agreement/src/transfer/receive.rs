// SPDX-License-Identifier: Apache-2.0
//! Messages from other hosts.

use super::{
    Arriving, Fate, Identity, REFUSED_MAX, Reason, RoomError, Source, TRIES_MAX, TransferError, Transfers,
    arriving::Taken, message::TransferMessage, peer::Wanted, push_once,
};
use fide_types::HostId;

impl Transfers {
    /// A message from another host. A late one is taken, and changes nothing but a counter.
    ///
    /// # Errors
    /// [`TransferError`]: no host sends such a message to this one; nothing has changed.
    pub fn receive(&mut self, from: u16, message: &[u8]) -> Result<(), TransferError> {
        if !self.is_other(from) {
            return Err(TransferError::Stranger { host: from });
        }
        if self.is_gone(from) {
            return Err(TransferError::Crashed { host: from });
        }
        match TransferMessage::read(message)? {
            TransferMessage::Offer { identity, number } => self.take_offer(from, identity, number),
            TransferMessage::Want { identity, first, count } => self.take_want(from, identity, first, count)?,
            TransferMessage::Chunk { identity, index, bytes } => self.take_chunk(from, identity, index, bytes)?,
            TransferMessage::Have { identity, number } => self.take_answer(from, identity, number, None)?,
            TransferMessage::Refuse { identity, number, reason } => {
                self.take_answer(from, identity, number, Some(reason))?
            }
            TransferMessage::Missing { identity } => self.take_missing(from, identity)?,
        }
        Ok(())
    }

    fn take_offer(&mut self, from: u16, identity: Identity, number: u64) {
        let source = Source { host: from, number, tries: 0 };
        match self.peers[from].fate(number) {
            Fate::Old => {}
            Fate::Had => self.answer(from, TransferMessage::Have { identity, number }),
            Fate::Refused(reason) => self.answer(from, TransferMessage::Refuse { identity, number, reason }),
            Fate::Open => {
                if self.stored.contains_key(&identity) {
                    self.have(identity, source);
                } else if identity.len > self.config.payload_max {
                    self.refuse(identity, source, Reason::TooLong);
                } else if identity.len > self.config.offered_max() {
                    self.refuse(identity, source, Reason::BeyondRoom);
                } else if let Some(at) = self.arriving_at(&identity) {
                    self.add_source(at, source);
                } else if self.room_for_offer(identity.len).is_err() || self.begin(identity, source).is_err() {
                    // It will come again.
                    self.counters.offers_put_off += 1;
                }
            }
        }
    }

    fn take_want(&mut self, from: u16, identity: Identity, first: u32, count: u32) -> Result<(), TransferError> {
        if !self.stored.contains_key(&identity) {
            self.answer(from, TransferMessage::Missing { identity });
            return Ok(());
        }
        let chunks = super::chunks(identity.len, self.config.chunk_max);
        let end = first.checked_add(count).filter(|end| *end <= chunks && count > 0);
        let end = end.ok_or(TransferError::Range { identity, first, count, chunks })?;
        let fits = self.peers[from].want(Wanted { identity, next: first, end });
        self.counters.dropped += u64::from(!fits);
        self.turns.wanting.insert(from);
        Ok(())
    }

    fn take_chunk(&mut self, from: u16, identity: Identity, index: u32, bytes: &[u8]) -> Result<(), TransferError> {
        let Some(at) = self.arriving_at(&identity) else {
            if self.stored.contains_key(&identity) {
                self.counters.chunks_late += 1;
                return Ok(());
            }
            return Err(TransferError::Unasked { identity });
        };
        let taken = self.arriving[at].take(from, index, bytes)?;
        if taken == Taken::Late {
            self.counters.chunks_late += 1;
            return Ok(());
        }
        self.counters.chunks_taken += 1;
        match taken {
            Taken::Late | Taken::More => {}
            Taken::Whole => self.finish(at, None),
            Taken::Wrong => self.distrust(at),
        }
        Ok(())
    }

    /// A host answers an offer: it has the payload, or does not fetch it for a reason.
    fn take_answer(
        &mut self,
        from: u16,
        identity: Identity,
        number: u64,
        refused: Option<Reason>,
    ) -> Result<(), TransferError> {
        if number > self.last {
            return Err(TransferError::Number { number, last: Some(self.last) });
        }
        let offer = self.stored.get_mut(&identity).and_then(|stored| stored.offer.as_mut());
        // Otherwise the answer is late.
        if let Some(offer) = offer.filter(|offer| offer.number == number && offer.waiting.contains(from)) {
            if let Some(reason) = refused {
                if self.refused.len() >= REFUSED_MAX {
                    return Ok(());
                }
                offer.refused.insert(from);
                self.refused.push_back((from, identity, reason));
            }
            offer.waiting.remove(from);
            self.note_spread(identity);
        }
        Ok(())
    }

    fn take_missing(&mut self, from: u16, identity: Identity) -> Result<(), TransferError> {
        if let Some(at) = self.arriving_at(&identity) {
            let asked = self.arriving[at].sources[0].host;
            if !self.remove_source(at, from) {
                return Err(TransferError::NotAsked { identity, from, asked });
            }
        }
        Ok(())
    }

    pub(super) fn answer(&mut self, to: u16, answer: TransferMessage<'static>) {
        let fits = self.peers[to].answer(answer);
        self.counters.dropped += u64::from(!fits);
        self.turns.answering.insert(to);
    }

    /// Answers that an offered payload is stored here.
    fn have(&mut self, identity: Identity, source: Source) {
        if source.number > 0 {
            self.stored.get_mut(&identity).expect("it is stored").offered_by.insert(source.host);
            self.peers[source.host].note(source.number, Fate::Had);
            self.answer(source.host, TransferMessage::Have { identity, number: source.number });
        }
    }

    pub(super) fn refuse(&mut self, identity: Identity, source: Source, reason: Reason) {
        if source.number > 0 {
            self.peers[source.host].note(source.number, Fate::Refused(reason));
            self.answer(source.host, TransferMessage::Refuse { identity, number: source.number, reason });
        }
    }

    /// Begins to ask for a payload whose length has been checked. Nothing changes if there is no room.
    pub(super) fn begin(&mut self, identity: Identity, source: Source) -> Result<(), RoomError> {
        let max = self.config.arriving_max;
        if self.arriving.len() >= max {
            return Err(RoomError::Arriving { max });
        }
        self.room(identity.len)?;
        self.used += identity.len;
        self.missing.retain(|missing| *missing != identity);
        let at = self.arriving.len();
        self.arriving.push(Arriving::new(identity, source, self.config.chunk_max));
        if identity.len == 0 {
            // There is nothing to ask for.
            if identity == Identity::of(&[]) {
                self.finish(at, None);
            } else {
                self.give_up(at);
            }
        }
        Ok(())
    }

    pub(super) fn add_source(&mut self, at: usize, source: Source) {
        let sources = &mut self.arriving[at].sources;
        let Some(known) = sources.iter_mut().find(|known| known.host == source.host) else {
            return sources.push(source);
        };
        let (before, newest) = (known.number, known.number.max(source.number));
        known.number = newest;
        // Of two offers of one payload only the newer one waits for an answer.
        let older = before.min(source.number);
        if older > 0 && older != newest {
            self.peers[source.host].note(older, Fate::Had);
        }
    }

    /// Removes a host from the sources of a payload. False if it is none of them.
    pub(super) fn remove_source(&mut self, at: usize, host: HostId) -> bool {
        let sources = &mut self.arriving[at].sources;
        let Some(which) = sources.iter().position(|source| source.host == host) else { return false };
        sources.remove(which);
        if which == 0 {
            self.ask_next(at);
        }
        true
    }

    /// The host that was asked is no source any more: asks the next one.
    fn ask_next(&mut self, at: usize) {
        if self.arriving[at].sources.is_empty() {
            let identity = self.arriving[at].identity;
            self.drop_arriving(at);
            push_once(&mut self.missing, identity);
        } else {
            self.arriving[at].ask_again();
        }
    }

    /// All chunks have come, and do not match the identity.
    fn distrust(&mut self, at: usize) {
        self.counters.payloads_wrong += 1;
        let arriving = &mut self.arriving[at];
        arriving.restart();
        arriving.sources[0].tries += 1;
        if arriving.sources[0].tries < TRIES_MAX {
            // Asks another source, if there is one.
            arriving.sources.rotate_left(1);
        } else {
            self.give_up(at);
        }
    }

    /// The host that was asked is a source no more: its payload does not match the identity.
    fn give_up(&mut self, at: usize) {
        self.counters.sources_given_up += 1;
        let Arriving { identity, sources, .. } = &mut self.arriving[at];
        let (identity, source) = (*identity, sources.remove(0));
        self.refuse(identity, source, Reason::Wrong);
        self.ask_next(at);
    }

    /// A payload is complete: its chunks have come, or this host has stored the same `bytes` itself.
    pub(super) fn finish(&mut self, at: usize, bytes: Option<Box<[u8]>>) {
        let arriving = self.arriving.swap_remove(at);
        let identity = arriving.identity;
        let (sources, came) = arriving.into_parts();
        self.keep(identity, bytes.unwrap_or(came));
        sources.into_iter().for_each(|source| self.have(identity, source));
        push_once(&mut self.arrived, identity);
    }

    /// Drops a payload under way. Returns its sources.
    pub(super) fn drop_arriving(&mut self, at: usize) -> Vec<Source> {
        let arriving = self.arriving.swap_remove(at);
        self.used -= arriving.identity.len;
        arriving.into_parts().0
    }
}
