// SPDX-License-Identifier: Apache-2.0
//! Whether this machine was put back to a snapshot, or a clone of it runs. It has then forgotten what it
//! promised and accepted since.
//!
//! A peer shows it: it acknowledges a heartbeat that this host has yet to send, or a later incarnation of
//! this host. That has to be checked before anything else of the packet is taken, because a host that was put
//! back must not vote. It is checked on refused packets too: a peer that has restarted since answers this
//! incarnation nothing else.
//!
//! What was heard before says nothing. A peer that was put back itself acknowledges what it heard long ago;
//! and a host that has lost its memory, and whose former incarnation was later, hears of that one from
//! recordings. So the packet must be the newest of its sender, and one that acknowledges a later incarnation
//! must come from a peer that has heard this one.

use crate::detector::Detector;
use crate::origin::Origin;
use crate::peer::Peer;
use crate::types::Event;
use fide_types::planted::{self, Planted};
use fide_wire::{Ack, Body, Packet, section};

/// Half the range of the numbers that an acknowledgement can show. One that looks this far ahead of the one
/// before, or further, may as well be behind it. 2^31 heartbeats of 1 ms are 25 days.
const HALF_RANGE: u64 = 1 << 31;

impl Detector {
    /// Finds whether the acknowledgement of a peer shows that this machine was put back.
    ///
    /// The numbers of a witness' lives do not count, because an acknowledgement shows only their lower half
    /// ([`Detector::ack_answers`]).
    pub(crate) fn check_put_back(&mut self, now_ns: u64, origin: Origin, ack: Ack) {
        let Some(peer) = self.peers.get(origin.host) else { return };
        self.life.hear_of(ack.incarnation);
        if self.acks_later_incarnation(peer, origin, ack)
            || self.ack_answers(ack) && is_newest(peer, origin) && self.acks_unsent(peer, origin, ack)
        {
            self.found_put_back(now_ns, origin.host);
        }
    }

    /// Does a peer that has heard this incarnation acknowledge a later one of this host?
    fn acks_later_incarnation(&self, peer: &Peer, origin: Origin, ack: Ack) -> bool {
        if ack.incarnation <= self.config.incarnation {
            return false;
        }
        let takes_naming = peer.has_answered() && planted::is(Planted::TakesNamingForHearing);
        let is_known = origin.incarnation == peer.incarnation && peer.has_answered();
        let is_known = is_known || !planted::is(Planted::HeedsTheKnownOnly);
        let has_heard_me = peer.has_heard_me || takes_naming;
        has_heard_me && is_newest(peer, origin) && is_known || planted::is(Planted::HeedsRecordings)
    }

    /// Does the peer acknowledge a heartbeat of this incarnation that is yet to be sent? An acknowledgement
    /// shows the lower half of a number.
    ///
    /// - This incarnation has sent no heartbeat with that half: then it is one yet to be sent.
    /// - Otherwise, a peer acknowledges no less than it did before. A number that looks lower is one yet to
    ///   be sent, or the peer was put back itself and has stopped hearing this host. In that case the peer
    ///   was at most half the range of such numbers behind; or the peer itself has not sent as many
    ///   heartbeats since then as a host would that hears so many more.
    /// - This host has sent half of that range meanwhile: then the number says nothing.
    fn acks_unsent(&self, peer: &Peer, origin: Origin, ack: Ack) -> bool {
        if origin.incarnation <= peer.dead_incarnation || ack.seq_low == 0 {
            return false;
        }
        let last = self.sent.newest();
        #[allow(clippy::cast_possible_truncation, reason = "the lower half, as in acknowledgements")]
        let ago = u64::from((last as u32).wrapping_sub(ack.seq_low));
        // The newest heartbeat sent that the number can stand for.
        let newest = last.checked_sub(ago).filter(|newest| *newest > self.life.former_seq());
        let Some(newest) = newest else { return true };
        let acked = if planted::is(Planted::CountsFromNow) { last } else { peer.acked_seq() };
        let sent_since = last.saturating_sub(acked);
        // Another incarnation of the peer may have been put back further than its numbers show.
        if origin.incarnation != peer.incarnation || newest >= acked || sent_since >= HALF_RANGE {
            return false;
        }
        let ahead = newest + (1 << 32) - acked;
        let peer_sent = origin.seq.saturating_sub(peer.acked_by_seq());
        let has_sent_as_many = peer_sent >= ahead / 4 * 3 && peer_sent / 4 >= sent_since;
        ahead < HALF_RANGE || has_sent_as_many || planted::is(Planted::TakesBehindForAhead)
    }

    /// Peers may mention a later incarnation of this host, for example as dead: this host had another state
    /// directory then. The next incarnation has to be above that one.
    pub(crate) fn note_own_incarnations(&mut self, packet: &Packet<&[u8]>) {
        let me = self.config.me;
        let named = packet.bodies_of(|kind| kind == section::EXCLUDED).flat_map(|body| match body {
            Body::Excluded(excluded) => excluded.iter().filter(|named| named.0 == me).map(|named| named.1).max(),
            _ => None,
        });
        self.life.hear_of(named.max().unwrap_or_default());
    }

    /// Ends this incarnation. Also after an exclusion: a machine that was put back does not start anew by
    /// itself.
    fn found_put_back(&mut self, now_ns: u64, by: u16) {
        if self.life.is_put_back() || planted::is(Planted::MissesItself) {
            return;
        }
        if self.life.is_excluded() && planted::is(Planted::ExcludedOnly) {
            return;
        }
        self.life.exclude();
        if self.life.is_leaving() {
            // It is out, as it wished to be.
            return;
        }
        self.life.put_back();
        self.emit(Event::PutBack { by, incarnation: self.config.incarnation });
        self.renew_lease(now_ns);
    }
}

/// Is this packet the newest of its sender?
fn is_newest(peer: &Peer, origin: Origin) -> bool {
    let same_incarnation = origin.incarnation == peer.incarnation;
    let is_newest = origin.seq >= peer.last_seq || planted::is(Planted::HeedsTheOld);
    origin.incarnation > peer.incarnation || same_incarnation && is_newest
}
