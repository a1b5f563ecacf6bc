// SPDX-License-Identifier: Apache-2.0
//! Payloads that are too long for an instance's value, sent ahead of the agreement on them; and states for
//! hosts that join.
//!
//! A member that wants a long payload agreed on offers it to all members, waits until all live members store
//! it ([`Transfers::poll_spread`]), and proposes its [`Identity`]. So a member that learns the decision has
//! the payload, and as with a value all but one may crash. A host that joins fetches a state by the identity
//! whose identity it learned ([`Transfers::fetch`]).
//!
//! ```text
//! offerer                      receiver
//!    │── offer ──────────────────►│  room? one buffer, one bitmap
//!    │◄───────────── want 0..w ───│
//!    │── chunk 0, 1, … ──────────►│  half of them here? want the next
//!    │            …               │
//!    │◄─────────────────── have ──│  all here, and the hash is right
//! ```
//!
//! The receiver paces the sender: it asks for at most `wants_max` chunks of a payload that have not come. A
//! sender keeps only the range of a want, and cuts chunks out of the payload when it is polled: one of each
//! range, of each host in turn.
//!
//! **Links** may lose, repeat and reorder messages: [`Transfers::resend`] makes up for that, and only time is
//! lost. The caller has to keep incarnations apart, as [`crate::Group`] does: a host that comes back is
//! announced with [`Transfers::joined`].
//!
//! **Offers are numbered**, and answers name the number. Otherwise a late answer to a former offer of the
//! same payload, which the receiver has forgotten since, would say that it has the payload; and a late copy
//! of an offer would bring back a forgotten payload.
//!
//! **Equal payloads are one.** A user that forgets a payload when its decision is carried out, and may
//! propose the same bytes twice, has to put a number into them, as [`crate::Group`] does: otherwise the
//! second decision finds nothing.
//!
//! **Room.** A payload that has no room now waits, and is taken when it is offered again. So hosts that are
//! full of what they offer themselves wait for each other for ever: let only the leader offer, or keep all
//! payloads that are offered at once below `stored_max`.
//!
//! **Memory**: `stored_max` bytes of payloads, at most [`PAYLOADS_MAX`] of them; for each that arrives, one
//! bit per chunk and 2 KiB; for each other host at most [`RANGES_MAX`] ranges, [`ANSWERS_MAX`] answers and
//! [`OFFERS_MAX`] bytes.

mod arriving;
mod config;
mod error;
mod message;
mod peer;
mod receive;
mod transmit;

use std::collections::{BTreeMap, VecDeque};

use fide_types::{
    HostId, HostSet, MAX_HOSTS, PerHost,
    planted::{self, Planted},
};

use arriving::{Arriving, Source};
pub use config::{
    ANSWERS_MAX, ARRIVING_MAX, CHUNK_MAX, Config, Counters, OFFERED_MAX, OFFERS_MAX, OFFERS_PER_RESEND, PAYLOADS_MAX,
    RANGES_MAX, REFUSED_MAX, TRIES_MAX, WANTS_PER_RESEND,
};
use config::{HASH_STEP, chunks, place};
pub use error::{ConfigError, FetchError, OfferError, Reason, RoomError, TransferError};
pub use message::{HEADER_LEN, Identity};
use peer::{Fate, Peer};

/// An offer of this host.
#[derive(Debug, Clone)]
struct Offer {
    number: u64,
    /// Live hosts that have not answered.
    waiting: HostSet,
    /// Live hosts that have refused.
    refused: HostSet,
    /// Reported by [`Transfers::poll_spread`], or about to be.
    is_spread: bool,
    /// Sent since the last resend: an answer may be under way.
    fresh: bool,
}

/// A payload that is stored.
#[derive(Debug, Clone)]
struct Stored {
    bytes: Box<[u8]>,
    offer: Option<Offer>,
    /// Hosts that have offered it.
    offered_by: HostSet,
}

/// The payloads of one host, and those under way to it.
#[derive(Debug, Clone)]
pub struct Transfers {
    /// 1..=64.
    me: u16,
    config: Config,
    wants_max: u32,
    crashed: HostSet,
    /// Hosts that are not up, and for which offers wait ([`Transfers::away`]).
    away: HostSet,
    peers: PerHost<Peer>,
    stored: BTreeMap<Identity, Stored>,
    arriving: Vec<Arriving>,
    /// Bytes of the stored and arriving payloads.
    used: u64,
    /// Number of the last offer.
    last: u64,
    /// Offers to be sent. This queue and the next three contain an identity at most once.
    due: VecDeque<Identity>,
    spread: VecDeque<Identity>,
    arrived: VecDeque<Identity>,
    missing: VecDeque<Identity>,
    refused: VecDeque<(u16, Identity, Reason)>,
    turns: transmit::Turns,
    counters: Counters,
}

impl Transfers {
    /// The transfers of host `me`, 1..=64. Nothing is stored yet.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn new(me: u16, config: Config) -> Result<Self, ConfigError> {
        if !(1..=MAX_HOSTS).contains(&usize::from(me)) {
            return Err(ConfigError::Me { me });
        }
        config.check()?;
        Ok(Self {
            me,
            config,
            wants_max: u32::try_from(config.wants_max).unwrap_or(u32::MAX),
            crashed: HostSet::EMPTY,
            away: HostSet::EMPTY,
            peers: PerHost::new(MAX_HOSTS, |_| Peer::default()),
            stored: BTreeMap::new(),
            arriving: Vec::new(),
            used: 0,
            last: 0,
            due: VecDeque::new(),
            spread: VecDeque::new(),
            arrived: VecDeque::new(),
            missing: VecDeque::new(),
            refused: VecDeque::new(),
            turns: transmit::Turns::default(),
            counters: Counters::default(),
        })
    }

    /// Stores a payload and offers it to the live hosts of `to`, except this one, until each has answered.
    /// [`Transfers::poll_spread`] reports it once all of them store it. A payload that is offered again
    /// before that is reported once, for the hosts of both offers.
    ///
    /// # Errors
    /// [`OfferError`].
    pub fn offer(&mut self, payload: Vec<u8>, to: HostSet) -> Result<Identity, OfferError> {
        let number = self.next_offer()?;
        let (len, max) = (payload.len() as u64, self.config.payload_max.min(self.config.offered_max()));
        if len > max {
            return Err(RoomError::TooLong { len, max }.into());
        }
        let identity = self.store_if(payload, Self::room_for_offer)?;
        self.offer_stored(identity, number, to);
        Ok(identity)
    }

    /// As [`Transfers::offer`], for a payload that is stored. Does nothing if it is not.
    ///
    /// # Errors
    /// [`OfferError`].
    pub fn offer_again(&mut self, identity: &Identity, to: HostSet) -> Result<(), OfferError> {
        let number = self.next_offer()?;
        if self.stored.contains_key(identity) {
            self.offer_stored(*identity, number, to);
        }
        Ok(())
    }

    fn next_offer(&self) -> Result<u64, OfferError> {
        let waiting =
            self.stored.values().filter_map(|stored| stored.offer.as_ref()).filter(|offer| !offer.waiting.is_empty());
        let oldest = waiting.map(|offer| offer.number).min();
        let number = self.last + 1;
        if let Some(oldest) = oldest.filter(|oldest| number - oldest >= OFFERS_MAX) {
            return Err(OfferError::Unanswered { oldest });
        }
        Ok(number)
    }

    fn offer_stored(&mut self, identity: Identity, number: u64, to: HostSet) {
        self.last = number;
        let mut waiting = to.minus(self.crashed);
        waiting.remove(self.me);
        let stored = self.stored.get_mut(&identity).expect("stored since the line above");
        if let Some(former) = &stored.offer {
            waiting = waiting.union(former.waiting);
        }
        stored.offer = Some(Offer { number, waiting, refused: HostSet::EMPTY, is_spread: false, fresh: false });
        self.spread.retain(|spread| *spread != identity);
        if waiting.is_empty() {
            self.note_spread(identity);
        } else {
            push_once(&mut self.due, identity);
        }
    }

    /// Stores a payload that others may fetch, without offering it.
    ///
    /// # Errors
    /// [`RoomError`].
    pub fn store(&mut self, payload: Vec<u8>) -> Result<Identity, RoomError> {
        self.store_if(payload, Self::room)
    }

    fn store_if(
        &mut self,
        payload: Vec<u8>,
        room: impl FnOnce(&Self, u64) -> Result<(), RoomError>,
    ) -> Result<Identity, RoomError> {
        let len = payload.len() as u64;
        self.fits_ever(len)?;
        let identity = Identity::of(&payload);
        if let Some(at) = self.arriving_at(&identity) {
            self.finish(at, Some(payload.into_boxed_slice()));
        } else if !self.stored.contains_key(&identity) {
            room(self, len)?;
            self.used += len;
            self.keep(identity, payload.into_boxed_slice());
        }
        Ok(identity)
    }

    /// Asks a host for a payload whose identity is known. [`Transfers::poll_arrived`] reports it, or
    /// [`Transfers::poll_missing`] if neither that host, nor another one that has offered it or was named
    /// here, has it any more.
    ///
    /// # Errors
    /// [`FetchError`].
    pub fn fetch(&mut self, identity: Identity, from: u16) -> Result<(), FetchError> {
        if !self.is_other(from) {
            return Err(FetchError::Host { host: from });
        }
        if self.is_gone(from) {
            return Err(FetchError::Crashed { host: from });
        }
        let source = Source { host: from, number: 0, tries: 0 };
        if self.stored.contains_key(&identity) {
            push_once(&mut self.arrived, identity);
        } else if let Some(at) = self.arriving_at(&identity) {
            self.add_source(at, source);
        } else {
            self.fits_ever(identity.len)?;
            self.begin(identity, source)?;
        }
        Ok(())
    }

    /// The bytes of a stored payload.
    #[must_use]
    pub fn get(&self, identity: &Identity) -> Option<&[u8]> {
        self.stored.get(identity).map(|stored| &*stored.bytes)
    }

    /// The stored payloads, each with the hosts that have offered it here. A payload that only a crashed host
    /// has offered, and that no decision names once all of that host's proposals are decided, has to be
    /// forgotten.
    pub fn stored(&self) -> impl Iterator<Item = (&Identity, HostSet)> {
        self.stored.iter().map(|(identity, stored)| (identity, stored.offered_by))
    }

    /// Frees a payload, whether it is stored, offered or arriving. If it has not arrived, its offerers are
    /// sent a refusal; hosts that are fetching it from here hear that it is missing. Nothing more is
    /// reported about it here.
    pub fn forget(&mut self, identity: &Identity) {
        if let Some(stored) = self.stored.remove(identity) {
            self.used -= stored.bytes.len() as u64;
            for queue in [&mut self.due, &mut self.spread, &mut self.arrived] {
                queue.retain(|other| other != identity);
            }
            self.refused.retain(|(_, other, _)| other != identity);
            self.peers.values_mut().iter_mut().for_each(|peer| peer.forget(identity));
        }
        if let Some(at) = self.arriving_at(identity) {
            for source in self.drop_arriving(at) {
                self.refuse(*identity, source, Reason::Forgotten);
            }
        }
        self.missing.retain(|other| other != identity);
    }

    /// The detector reports that a host has crashed. Nothing is sent to it or taken from it any more;
    /// payloads that only it had are missing.
    pub fn crashed(&mut self, host: HostId) {
        if !self.is_other(host) || self.crashed.contains(host) {
            return;
        }
        self.crashed.insert(host);
        self.away.remove(host);
        self.reset_peer(host);
        let mut had = Vec::new();
        for (identity, stored) in &mut self.stored {
            if let Some(offer) = &mut stored.offer {
                offer.waiting.remove(host);
                offer.refused.remove(host);
                had.push((offer.number, *identity));
            }
        }
        // Reported in the order in which they were offered.
        had.sort_unstable();
        had.into_iter().for_each(|(_, identity)| self.note_spread(identity));
    }

    /// An incarnation of this host is a member and not known to be up: nothing is sent to the host or taken
    /// from it until [`Transfers::joined`], and offers wait for it. Messages of a former incarnation count no
    /// more.
    pub fn away(&mut self, host: HostId) {
        if self.is_other(host) {
            self.crashed.remove(host);
            self.away.insert(host);
            self.reset_peer(host);
        }
    }

    /// A host takes part, for the first time or again as another incarnation: no message of its former
    /// incarnation counts. Offers that were made while it was away wait for it.
    pub fn joined(&mut self, host: HostId) {
        if !self.is_other(host) {
            return;
        }
        if self.away.contains(host) {
            self.away.remove(host);
        } else {
            self.crashed(host);
            self.crashed.remove(host);
        }
    }

    /// Forgets a host's answers, wants and offers.
    fn reset_peer(&mut self, host: HostId) {
        self.peers[host] = Peer::default();
        self.refused.retain(|(by, ..)| *by != host);
        // From the end: the payload that takes a removed one's place has been handled already.
        for at in (0..self.arriving.len()).rev() {
            self.remove_source(at, host);
        }
    }

    fn is_gone(&self, host: HostId) -> bool {
        self.crashed.contains(host) || self.away.contains(host)
    }

    /// The next offered payload that all live hosts store to which it was offered. Each offer is reported
    /// once.
    pub fn poll_spread(&mut self) -> Option<Identity> {
        self.spread.pop_front()
    }

    /// The next payload that has arrived, of those that were offered to this host or fetched.
    pub fn poll_arrived(&mut self) -> Option<Identity> {
        self.arrived.pop_front()
    }

    /// The next payload that was under way, and that no host has any more, or none has intact.
    pub fn poll_missing(&mut self) -> Option<Identity> {
        self.missing.pop_front()
    }

    /// The next refusal of a payload that this host has offered: by which host, and why. The payload is not
    /// reported as spread unless that host crashes, or takes the payload when it is offered again.
    pub fn poll_refused(&mut self) -> Option<(u16, Identity, Reason)> {
        self.refused.pop_front()
    }

    /// Bytes of the stored and arriving payloads.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.used
    }

    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    fn is_other(&self, host: HostId) -> bool {
        (1..=MAX_HOSTS).contains(&usize::from(host)) && host != self.me
    }

    fn arriving_at(&self, identity: &Identity) -> Option<usize> {
        self.arriving.iter().position(|arriving| arriving.identity == *identity)
    }

    /// Checks that a payload of this length can ever be taken.
    fn fits_ever(&self, len: u64) -> Result<(), RoomError> {
        let max = self.config.payload_max.min(self.config.stored_max);
        if len > max { Err(RoomError::TooLong { len, max }) } else { Ok(()) }
    }

    /// Checks that there is room for a payload now.
    fn room(&self, len: u64) -> Result<(), RoomError> {
        let (used, max) = (self.used, self.config.stored_max);
        if len > max - used {
            return Err(RoomError::Full { len, used, max });
        }
        if self.stored.len() + self.arriving.len() + self.missing.len() >= PAYLOADS_MAX {
            return Err(RoomError::Payloads);
        }
        Ok(())
    }

    /// Checks that there is room for an offered payload: less than for others.
    fn room_for_offer(&self, len: u64) -> Result<(), RoomError> {
        let (used, max) = (self.used, self.config.offered_max());
        if len > max.saturating_sub(used) && !planted::is(Planted::OffersTakeAll) {
            return Err(RoomError::Full { len, used, max });
        }
        let places = if planted::is(Planted::OffersTakeAll) { PAYLOADS_MAX } else { OFFERED_MAX };
        if self.stored.len() + self.arriving.len() + self.missing.len() >= places {
            return Err(RoomError::Payloads);
        }
        Ok(())
    }

    fn keep(&mut self, identity: Identity, bytes: Box<[u8]>) {
        self.missing.retain(|missing| *missing != identity);
        self.stored.insert(identity, Stored { bytes, offer: None, offered_by: HostSet::EMPTY });
    }

    fn note_spread(&mut self, identity: Identity) {
        let offer = self.stored.get_mut(&identity).and_then(|stored| stored.offer.as_mut());
        if let Some(offer) =
            offer.filter(|offer| !offer.is_spread && offer.waiting.is_empty() && offer.refused.is_empty())
        {
            offer.is_spread = true;
            push_once(&mut self.spread, identity);
        }
    }
}

fn push_once(queue: &mut VecDeque<Identity>, identity: Identity) {
    if !queue.contains(&identity) {
        queue.push_back(identity);
    }
}

#[cfg(test)]
mod tests;
