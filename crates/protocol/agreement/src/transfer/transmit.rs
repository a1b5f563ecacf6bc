// SPDX-License-Identifier: Apache-2.0
//! Sending: short answers first, then offers, wants, and chunks.

use std::ops::Bound;

use fide_types::HostSet;

use super::{Identity, OFFERS_PER_RESEND, Transfers, message::TransferMessage, place, push_once};

/// Whose turn it is to be sent something.
#[derive(Debug, Clone, Default)]
pub(super) struct Turns {
    /// Hosts for which answers wait; some of them may have crashed since.
    pub(super) answering: HostSet,
    /// Hosts that want chunks, likewise.
    pub(super) wanting: HostSet,
    answered: u16,
    sent_chunk: u16,
    wanted: usize,
    /// The offer that was sent again last.
    offered: Option<Identity>,
}

impl Transfers {
    /// The next message, written over `out`, and its receivers. To be polled until there is none, or until
    /// enough is under way on the network: nothing is lost by polling later.
    pub fn poll_transmit(&mut self, out: &mut Vec<u8>) -> Option<HostSet> {
        out.clear();
        self.send_answer(out)
            .or_else(|| self.send_offer(out))
            .or_else(|| self.send_want(out))
            .or_else(|| self.send_chunk(out))
    }

    /// To be called from time to time: sends offers and wants again that were sent before the last call and
    /// have had no answer. A good interval is a little more than a round trip with `wants_max` chunks of each
    /// payload under way.
    ///
    /// At most [`OFFERS_PER_RESEND`] offers follow and, for each payload under way to this host,
    /// [`super::WANTS_PER_RESEND`] wants.
    pub fn resend(&mut self) {
        let last = self.turns.offered.unwrap_or(Identity { len: 0, hash: [0; 32] });
        let mut again = Vec::new();
        for range in [(Bound::Excluded(last), Bound::Unbounded), (Bound::Unbounded, Bound::Included(last))] {
            for (identity, stored) in self.stored.range_mut(range) {
                let Some(offer) = stored.offer.as_mut().filter(|offer| !offer.waiting.is_empty()) else { continue };
                if !std::mem::take(&mut offer.fresh) && again.len() < OFFERS_PER_RESEND {
                    again.push(*identity);
                }
            }
        }
        for identity in again {
            push_once(&mut self.due, identity);
            self.turns.offered = Some(identity);
            self.counters.offers_resent += 1;
        }
        for arriving in &mut self.arriving {
            arriving.resend();
        }
    }

    fn send_answer(&mut self, out: &mut Vec<u8>) -> Option<HostSet> {
        while let Some(host) = next(self.turns.answering, self.turns.answered) {
            self.turns.answered = host;
            let peer = &mut self.peers[host];
            let answer = peer.next_answer();
            if !peer.has_answers() {
                self.turns.answering.remove(host);
            }
            if let Some(answer) = answer {
                answer.write(out);
                return Some(HostSet::only(host));
            }
        }
        None
    }

    fn send_offer(&mut self, out: &mut Vec<u8>) -> Option<HostSet> {
        while let Some(identity) = self.due.pop_front() {
            let offer = self.stored.get_mut(&identity).and_then(|stored| stored.offer.as_mut());
            // All may have answered since.
            if let Some(offer) = offer.filter(|offer| !offer.waiting.is_empty()) {
                offer.fresh = true;
                TransferMessage::Offer { identity, number: offer.number }.write(out);
                return Some(offer.waiting);
            }
        }
        None
    }

    fn send_want(&mut self, out: &mut Vec<u8>) -> Option<HostSet> {
        let count = self.arriving.len();
        for step in 0..count {
            let at = (self.turns.wanted + step) % count;
            let arriving = &mut self.arriving[at];
            let again = arriving.next_again(self.wants_max);
            self.counters.wants_resent += u64::from(again.is_some());
            if let Some((first, count)) = again.or_else(|| arriving.next_want(self.wants_max)) {
                self.turns.wanted = at + 1;
                TransferMessage::Want { identity: arriving.identity, first, count }.write(out);
                return Some(HostSet::only(arriving.sources[0].host));
            }
        }
        None
    }

    fn send_chunk(&mut self, out: &mut Vec<u8>) -> Option<HostSet> {
        while let Some(host) = next(self.turns.wanting, self.turns.sent_chunk) {
            self.turns.sent_chunk = host;
            let peer = &mut self.peers[host];
            let chunk = peer.next_chunk();
            if !peer.wants_any() {
                self.turns.wanting.remove(host);
            }
            let stored = chunk.and_then(|(identity, index)| Some((identity, index, self.stored.get(&identity)?)));
            if let Some((identity, index, stored)) = stored {
                let bytes = &stored.bytes[place(index, self.config.chunk_max, stored.bytes.len())];
                TransferMessage::Chunk { identity, index, bytes }.write(out);
                self.counters.chunks_sent += 1;
                return Some(HostSet::only(host));
            }
        }
        None
    }
}

/// The first of `hosts` after another one; after the last one, the first.
fn next(hosts: HostSet, after: u16) -> Option<u16> {
    hosts.iter().find(|host| *host > after).or_else(|| hosts.iter().next())
}
