// SPDX-License-Identifier: Apache-2.0
//! Payloads that are too long for an instance's value, sent ahead of the agreement on them; snapshots for members that
//! join.
//!
//! Whoever wants a long payload agreed on offers it to all members, waits until all that live have it
//! ([`Transfers::poll_spread`]), and proposes its [`Identity`]. So whoever learns the decision has the payload, and as
//! with a value all but one may crash. A member that joins fetches a snapshot by the identity that it was told
//! ([`Transfers::fetch`]).
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
//! The receiver paces the sender: it asks for at most `wants_max` chunks of a payload that have not come. A sender
//! keeps of a want only the range, and cuts chunks out of the payload when it is polled: one of each range, of each
//! host in turn.
//!
//! **Links** may lose, repeat and reorder: [`Transfers::resend`] makes good for it, and all that is lost is time. They
//! have to keep incarnations apart, as [`crate::Group`] does: a host that comes back is told by [`Transfers::joined`].
//!
//! **Offers are numbered**, and answers name the number. Otherwise a late answer to a former offer of the same payload,
//! which the receiver has forgotten since, would say that it has it; and a late copy of an offer would bring back what
//! was forgotten.
//!
//! **Equal payloads are one.** Who forgets a payload when its decision is carried out, and may propose the same bytes
//! twice, has to put a number into them, as [`crate::Group`] does: else the second decision finds nothing.
//!
//! **Room.** What does not fit now waits, and is taken when it is offered again. So hosts that are full of what they
//! offer themselves wait for each other for ever: let only the leader offer, or keep what all members offer at once
//! below `held_max`.
//!
//! **Memory**: `held_max` bytes of payloads, [`PAYLOADS_MAX`] of them at most; for each that arrives a bit per chunk
//! and 2 KiB; for each other host at most [`RANGES_MAX`] ranges, [`ANSWERS_MAX`] answers and [`OFFERS_MAX`] bytes.

mod arriving;
mod config;
mod error;
mod message;
mod peer;
mod receive;
mod transmit;

use std::collections::{BTreeMap, VecDeque};

use fide_types::{
    HostSet, MAX_HOSTS,
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
    /// Hosts that live and have not answered.
    waiting: HostSet,
    /// Hosts that live and have refused.
    refused: HostSet,
    told: bool,
    /// Sent since the last resend: an answer may be under way.
    fresh: bool,
}

#[derive(Debug, Clone)]
struct Held {
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
    /// Hosts that are not here, and that offers wait for ([`Transfers::away`]).
    away: HostSet,
    /// By id-1.
    peers: Box<[Peer]>,
    held: BTreeMap<Identity, Held>,
    arriving: Vec<Arriving>,
    /// Bytes of those held and arriving.
    used: u64,
    /// Number of the last offer.
    last: u64,
    /// Offers to be sent. This and the next three hold an identity once.
    due: VecDeque<Identity>,
    spread: VecDeque<Identity>,
    arrived: VecDeque<Identity>,
    missing: VecDeque<Identity>,
    refused: VecDeque<(u16, Identity, Reason)>,
    turns: transmit::Turns,
    counters: Counters,
}

impl Transfers {
    /// Of host `me`, 1..=64. Nothing is held yet.
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
            peers: vec![Peer::default(); MAX_HOSTS].into_boxed_slice(),
            held: BTreeMap::new(),
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

    /// Keeps a payload and offers it to the hosts `to` that live, this one excepted, until each has answered. Told by
    /// [`Transfers::poll_spread`] once all have it. Offered again before that, it is told once, of the hosts of both
    /// offers.
    ///
    /// # Errors
    /// [`OfferError`].
    pub fn offer(&mut self, payload: Vec<u8>, to: HostSet) -> Result<Identity, OfferError> {
        let number = self.next_offer()?;
        let (len, max) = (payload.len() as u64, self.config.payload_max.min(self.config.offered_max()));
        if len > max {
            return Err(RoomError::TooLong { len, max }.into());
        }
        let identity = self.hold_if(payload, Self::room_for_offer)?;
        self.offer_held(identity, number, to);
        Ok(identity)
    }

    /// As [`Transfers::offer`], of a payload that is held. Nothing if it is not.
    ///
    /// # Errors
    /// [`OfferError`].
    pub fn offer_again(&mut self, identity: &Identity, to: HostSet) -> Result<(), OfferError> {
        let number = self.next_offer()?;
        if self.held.contains_key(identity) {
            self.offer_held(*identity, number, to);
        }
        Ok(())
    }

    fn next_offer(&self) -> Result<u64, OfferError> {
        let waiting =
            self.held.values().filter_map(|held| held.offer.as_ref()).filter(|offer| !offer.waiting.is_empty());
        let oldest = waiting.map(|offer| offer.number).min();
        let number = self.last + 1;
        if let Some(oldest) = oldest.filter(|oldest| number - oldest >= OFFERS_MAX) {
            return Err(OfferError::Unanswered { oldest });
        }
        Ok(number)
    }

    fn offer_held(&mut self, identity: Identity, number: u64, to: HostSet) {
        self.last = number;
        let mut waiting = to.minus(self.crashed);
        waiting.remove(self.me);
        let held = self.held.get_mut(&identity).expect("held since the line above");
        if let Some(former) = &held.offer {
            waiting = HostSet(waiting.0 | former.waiting.0);
        }
        held.offer = Some(Offer { number, waiting, refused: HostSet::EMPTY, told: false, fresh: false });
        self.spread.retain(|told| *told != identity);
        if waiting.is_empty() {
            self.tell_spread(identity);
        } else {
            push_once(&mut self.due, identity);
        }
    }

    /// Keeps a payload that others may fetch, without offering it.
    ///
    /// # Errors
    /// [`RoomError`].
    pub fn hold(&mut self, payload: Vec<u8>) -> Result<Identity, RoomError> {
        self.hold_if(payload, Self::room)
    }

    fn hold_if(
        &mut self,
        payload: Vec<u8>,
        room: impl FnOnce(&Self, u64) -> Result<(), RoomError>,
    ) -> Result<Identity, RoomError> {
        let len = payload.len() as u64;
        self.fits_ever(len)?;
        let identity = Identity::of(&payload);
        if let Some(at) = self.arriving_at(&identity) {
            self.finish(at, Some(payload.into_boxed_slice()));
        } else if !self.held.contains_key(&identity) {
            room(self, len)?;
            self.used += len;
            self.keep(identity, payload.into_boxed_slice());
        }
        Ok(identity)
    }

    /// Asks a host for a payload whose identity is known. Told by [`Transfers::poll_arrived`], or by
    /// [`Transfers::poll_missing`] if neither this host nor another that has offered it, or was named here, has it any
    /// more.
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
        if self.held.contains_key(&identity) {
            push_once(&mut self.arrived, identity);
        } else if let Some(at) = self.arriving_at(&identity) {
            self.add_source(at, source);
        } else {
            self.fits_ever(identity.len)?;
            self.begin(identity, source)?;
        }
        Ok(())
    }

    /// A payload that is held: offered, kept, or arrived.
    #[must_use]
    pub fn get(&self, identity: &Identity) -> Option<&[u8]> {
        self.held.get(identity).map(|held| &*held.bytes)
    }

    /// The payloads that are held, and which hosts have offered each here. What only a crashed host has offered, and no
    /// decision names once all of its proposals are decided, is to be forgotten.
    pub fn held(&self) -> impl Iterator<Item = (&Identity, HostSet)> {
        self.held.iter().map(|(identity, held)| (identity, held.offered_by))
    }

    /// Frees a payload, whether it is held, offered or arriving. Its offerer is refused what has not arrived; who is
    /// fetching it from here is told that it is missing. Nothing more is told of it here.
    pub fn forget(&mut self, identity: &Identity) {
        if let Some(held) = self.held.remove(identity) {
            self.used -= held.bytes.len() as u64;
            for queue in [&mut self.due, &mut self.spread, &mut self.arrived] {
                queue.retain(|other| other != identity);
            }
            self.refused.retain(|(_, other, _)| other != identity);
            self.peers.iter_mut().for_each(|peer| peer.forget(identity));
        }
        if let Some(at) = self.arriving_at(identity) {
            for source in self.drop_arriving(at) {
                self.refuse(*identity, source, Reason::Forgotten);
            }
        }
        self.missing.retain(|other| other != identity);
    }

    /// The detector says that a host has crashed. Nothing is sent to it or taken from it any more; what only it had is
    /// missing.
    pub fn crashed(&mut self, host: u16) {
        if !self.is_other(host) || self.crashed.contains(host) {
            return;
        }
        self.crashed.insert(host);
        self.away.remove(host);
        self.begin_anew(host);
        let mut had = Vec::new();
        for (identity, held) in &mut self.held {
            if let Some(offer) = &mut held.offer {
                offer.waiting.remove(host);
                offer.refused.remove(host);
                had.push((offer.number, *identity));
            }
        }
        // Told in the order in which they were offered.
        had.sort_unstable();
        had.into_iter().for_each(|(_, identity)| self.tell_spread(identity));
    }

    /// An incarnation of this host is a member and is not known to be up: nothing is sent to the host or taken from it
    /// until [`Transfers::joined`], and offers wait for it. What a former incarnation has said counts no more.
    pub fn away(&mut self, host: u16) {
        if self.is_other(host) {
            self.crashed.remove(host);
            self.away.insert(host);
            self.begin_anew(host);
        }
    }

    /// A host takes part, for the first time or again as another incarnation: nothing that its former one has sent
    /// counts. Offers wait for it that were made while it was away.
    pub fn joined(&mut self, host: u16) {
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

    /// Nothing is known of a host's answers, wants and offers.
    fn begin_anew(&mut self, host: u16) {
        *self.peer(host) = Peer::default();
        self.refused.retain(|(by, ..)| *by != host);
        // From the end: what takes a removed one's place has been looked at.
        for at in (0..self.arriving.len()).rev() {
            self.remove_source(at, host);
        }
    }

    fn is_gone(&self, host: u16) -> bool {
        self.crashed.contains(host) || self.away.contains(host)
    }

    /// The next offered payload that all hosts it was offered to have, those that have crashed excepted. Each offer is
    /// told once.
    pub fn poll_spread(&mut self) -> Option<Identity> {
        self.spread.pop_front()
    }

    /// The next payload that has arrived, of those offered here or fetched.
    pub fn poll_arrived(&mut self) -> Option<Identity> {
        self.arrived.pop_front()
    }

    /// The next payload that was under way, and that no host has any more, or none rightly.
    pub fn poll_missing(&mut self) -> Option<Identity> {
        self.missing.pop_front()
    }

    /// The next refusal: by whom, of what this host has offered, and why. Such a payload is not told as spread unless
    /// the host crashes, or has it after it is offered again.
    pub fn poll_refused(&mut self) -> Option<(u16, Identity, Reason)> {
        self.refused.pop_front()
    }

    /// Bytes of the payloads that are held or arriving.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.used
    }

    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    fn is_other(&self, host: u16) -> bool {
        (1..=MAX_HOSTS).contains(&usize::from(host)) && host != self.me
    }

    fn peer(&mut self, host: u16) -> &mut Peer {
        &mut self.peers[usize::from(host) - 1]
    }

    fn arriving_at(&self, identity: &Identity) -> Option<usize> {
        self.arriving.iter().position(|arriving| arriving.identity == *identity)
    }

    /// Whether a payload of this length is ever taken.
    fn fits_ever(&self, len: u64) -> Result<(), RoomError> {
        let max = self.config.payload_max.min(self.config.held_max);
        if len > max { Err(RoomError::TooLong { len, max }) } else { Ok(()) }
    }

    /// Whether there is room for it now.
    fn room(&self, len: u64) -> Result<(), RoomError> {
        let (used, max) = (self.used, self.config.held_max);
        if len > max - used {
            return Err(RoomError::Full { len, used, max });
        }
        if self.held.len() + self.arriving.len() + self.missing.len() >= PAYLOADS_MAX {
            return Err(RoomError::Payloads);
        }
        Ok(())
    }

    /// Whether there is room for one that is offered: less than for others.
    fn room_for_offer(&self, len: u64) -> Result<(), RoomError> {
        let (used, max) = (self.used, self.config.offered_max());
        if len > max.saturating_sub(used) && !planted::is(Planted::OffersTakeAll) {
            return Err(RoomError::Full { len, used, max });
        }
        let places = if planted::is(Planted::OffersTakeAll) { PAYLOADS_MAX } else { OFFERED_MAX };
        if self.held.len() + self.arriving.len() + self.missing.len() >= places {
            return Err(RoomError::Payloads);
        }
        Ok(())
    }

    fn keep(&mut self, identity: Identity, bytes: Box<[u8]>) {
        self.missing.retain(|told| *told != identity);
        self.held.insert(identity, Held { bytes, offer: None, offered_by: HostSet::EMPTY });
    }

    fn tell_spread(&mut self, identity: Identity) {
        let offer = self.held.get_mut(&identity).and_then(|held| held.offer.as_mut());
        if let Some(offer) = offer.filter(|offer| !offer.told && offer.waiting.is_empty() && offer.refused.is_empty()) {
            offer.told = true;
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
