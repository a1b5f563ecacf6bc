// SPDX-License-Identifier: Apache-2.0
//! Which hosts are alive now, and not a recording.
//!
//! Tags prove who wrote a packet, not when. The replay window refuses what was received before, but the
//! window of an agent that has just started is empty: to that agent, recorded heartbeats of a host that has
//! died since look like life.
//!
//! So a peer's heartbeats count as signs of life only once that incarnation of the peer has **answered** this
//! incarnation of this host: acknowledged it, echoed one of its heartbeats, or named it as excluded.
//! Incarnations are never used twice, so no recording from before this agent's start holds such an answer.
//! From the answer on the replay window protects, because it stands at the newest heartbeat.
//!
//! Acknowledgements bind their sender ([`crate::lease`]) and go only to peers that are up, so they cannot be
//! the first answer. The first answer is the **echo**: a section that repeats the number of the newest
//! heartbeat received from a peer that does not acknowledge this host yet. It promises nothing. Two hosts
//! that start together have answered each other after one heartbeat each.
//!
//! A witness goes on as the incarnation that it was ([`crate::Vote`]), so acknowledgements of that
//! incarnation may be recordings. It accepts only echoes, and only of heartbeats of its present life, whose
//! numbers carry the life. Acknowledgements show only the lower half of a number, so one of a former life
//! could be taken for one of the present life. They count from the peer's answer on: what the peer sent
//! before the answer may still come, late, or by the plane that has delivered less, whose slot in the kernel
//! stands further back.
//!
//! # What a replay can do
//!
//! - Before the answer: this host echoes the recorded incarnation while the replay lasts ([`ECHOES_MAX`] in
//!   each heartbeat), and learns that the incarnation existed. That ends what was known of earlier ones,
//!   which is true.
//! - After the answer: nothing that was received before is taken again. Packets that were held back on their
//!   way and never delivered count as late ones, and may keep a dead host alive for as long as they last.
//!   Whoever can hold packets back between two hosts can also cut them off.
//!
//! The kernel's receive program applies the window and decides nothing: it arms a timer, whose end is a hint,
//! and tells watchers of an exit, which is a fact whenever it was recorded.

use crate::detector::Detector;
use fide_types::HostId;
use fide_wire::{Ack, Body, Builder, Excluded, Packet, section};

/// Echoes in one heartbeat; more peers take turns.
pub const ECHOES_MAX: usize = 16;

impl Detector {
    /// Notes a heartbeat of `host`, so that it can be echoed; it may be a recording. `answers`: it answers
    /// this host. Returns whether the host has answered, now or before.
    pub(crate) fn note_answer(&mut self, host: HostId, seq: u64, rx_ns: u64, answers: bool) -> bool {
        let answered = self.peers[host].note(seq, rx_ns, answers);
        if !answered {
            self.counters.heartbeats_unanswered += 1;
        }
        answered
    }

    /// Is this acknowledgement an answer to this incarnation of this host?
    pub(crate) fn ack_answers(&self, ack: Ack) -> bool {
        !self.life.is_resumed() && ack.incarnation == self.config.incarnation
    }

    /// Does this packet answer this incarnation of this host?
    pub(crate) fn answers(&self, packet: &Packet<&[u8]>) -> bool {
        self.hears_me(packet) || !self.life.is_resumed() && self.is_named_dead(packet)
    }

    /// Does this packet acknowledge or echo this incarnation of this host? Its sender has then heard that
    /// incarnation, and has not declared it dead.
    pub(crate) fn hears_me(&self, packet: &Packet<&[u8]>) -> bool {
        let (me, incarnation) = (self.config.me, self.config.incarnation);
        let sent = self.life.former_seq() + 1..=self.sent.newest();
        let is_mine = |(host, inc, seq): (u16, u32, u64)| (host, inc) == (me, incarnation) && sent.contains(&seq);
        packet.ack(me).is_some_and(|ack| self.ack_answers(ack))
            || packet
                .bodies_of(|kind| kind == section::ECHO)
                .any(|body| matches!(body, Body::Echo(echoes) if echoes.iter().any(&is_mine)))
    }

    /// Does this packet name this incarnation of this host as dead?
    pub(crate) fn is_named_dead(&self, packet: &Packet<&[u8]>) -> bool {
        let named = packet.bodies_of(|kind| kind == section::EXCLUDED);
        named.into_iter().any(|body| matches!(body, Body::Excluded(excluded) if self.names_me(excluded)))
    }

    pub(crate) fn names_me(&self, excluded: Excluded<'_>) -> bool {
        excluded.iter().any(|named| named == (self.config.me, self.config.incarnation))
    }

    /// Echoes peers that do not acknowledge this host yet, in turns if they are many. What does not fit has
    /// its turn in a later heartbeat.
    pub(crate) fn write_echoes(&self, b: &mut Builder<'_>, now_ns: u64, seq: u64) {
        let echoes = self
            .peers
            .in_turn(seq)
            .filter(|peer| peer.needs_echo(now_ns))
            .map(|peer| (peer.id, peer.incarnation, peer.noted_seq()));
        // Refused only when there is no room at all.
        let _ = b.echoes(echoes.take(ECHOES_MAX));
    }
}
