// SPDX-License-Identifier: Apache-2.0
//! What is heard of one host (FiDe §3.3 redundancy, §3.4 passive detection).
//!
//! ```text
//!            heard (policy majority: in the agreed view)
//!  Unknown ────────────────────────────────────────────► Up ──► Dead   silent for the timeout / view without it / superseded
//!     ▲                                                   └───► Left   goodbye
//!     └────────────────── a newer incarnation is heard ◄────────┘
//! ```
//!
//! A peer is silent when nothing new has come on any plane for the pair's timeout. That time counts from the
//! reception of its newest heartbeat or, if later, from the end of this observer's last stall. A full queue
//! may have dropped what was sent during the stall, but the next heartbeat arrives within HB + latency_min +
//! 2 jitter_max = TO of the stall's end. So the grace after a stall is the whole timeout.

use crate::config::Config;
use crate::lease;
use crate::life::LIFE_BITS;
use crate::types::{PeerState, PeerView};
use fide_types::{
    HostId, MAX_PLANES,
    planted::{self, Planted},
};
use fide_wire::{ReplayWindow, Seen, ViewId};
use serde::{Deserialize, Serialize};

/// A plane that falls this many heartbeats behind the other, and was quiet for so long, is lost before the
/// timeout. Both planes carry the same heartbeats, so a host that stalls makes neither fall behind the other.
/// A lost path is no verdict.
const PATH_BEHIND: u64 = 10;
const PATH_QUIET_NS: u64 = 10_000_000;
/// Heartbeats that name an excluded incarnation as excluded, after each packet from it.
const EXCLUDE_HEARTBEATS: u32 = 64;

/// An incarnation that a newer one has replaced, not yet declared dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Superseded {
    pub incarnation: u32,
    /// It was reported as up.
    pub reported: bool,
    /// Promises made to it hold until then.
    pub until_ns: u64,
    /// It may have declared this host dead. Then this host does not declare it dead, but takes itself for
    /// excluded ([`crate::lease`]).
    pub in_doubt: bool,
    pub last_seq: u64,
    pub last_rx_ns: [u64; MAX_PLANES],
}

/// What one plane has delivered of a peer.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Plane {
    /// The newest heartbeat, and when it was received.
    seq: u64,
    rx_ns: u64,
    /// The number from which losses count.
    first_seq: u64,
    received: u64,
    lost: bool,
}

impl Plane {
    /// Takes the newest heartbeat of this plane. Returns whether the plane was lost before.
    fn advance(&mut self, seq: u64, rx_ns: u64) -> bool {
        let jump = seq - self.seq;
        if self.seq == 0 {
            self.first_seq = seq;
        } else if jump >= 1 << (LIFE_BITS - 1) {
            // Another life of a witness; the numbers between were never sent.
            self.first_seq += jump - 1;
        }
        self.seq = seq;
        self.rx_ns = self.rx_ns.max(rx_ns);
        core::mem::take(&mut self.lost)
    }

    fn missing(&self) -> u64 {
        let sent = if self.seq == 0 { 0 } else { self.seq - self.first_seq + 1 };
        sent.saturating_sub(self.received)
    }
}

/// Whether a peer has answered this host, so that it is no recording ([`crate::echo`]).
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Answers {
    /// Nothing counts as received before it has answered.
    answered: bool,
    /// The heartbeat that held the answer.
    answered_seq: u64,
    /// Its newest heartbeat, counted as received or not, and when it came.
    noted_seq: u64,
    noted_ns: u64,
    /// It has acknowledged this host, so it has been answered.
    acknowledged: bool,
}

/// How far a peer is bound by what it has acknowledged of this host ([`crate::lease`]).
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Bond {
    /// Highest own heartbeat that it acknowledged, and its heartbeat that said so last.
    acked_seq: u64,
    acked_by_seq: u64,
    /// It cannot suspect this host before this (own clock, margin taken off); 0 for none.
    limit_ns: u64,
    /// Its newest heartbeat acknowledged one of this host's so early that it could not have declared this
    /// host dead by then, and this host has not stalled beyond its limit since. Only such a peer is judged.
    bound: bool,
    /// This host has stalled since it sent what this peer acknowledged last, so what it has sent since left
    /// late.
    sent_late: bool,
    /// The peer's last promise, 0 for none.
    promise_us: u32,
    /// It said that it hears this host's present incarnation.
    knows_me: bool,
    /// This host has sent it word that it is heard; from then on it may judge this host.
    greeted: bool,
}

/// An acknowledgement of one of this host's heartbeats that counts for the lease.
pub(crate) struct BindingAck {
    /// When the acknowledged heartbeat was sent.
    pub sent_ns: u64,
    /// When the acknowledgement was received. Only a planted fault counts from here.
    pub received_ns: u64,
    /// The end of this host's last stall.
    pub stalled_until_ns: u64,
    /// The heartbeat of the peer that acknowledges, and what it promises.
    pub seq: u64,
    pub promise_us: u32,
}

/// One host, as this one hears it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Peer {
    pub id: HostId,
    /// This host judges its silence.
    pub monitored: bool,
    /// It judges ours.
    pub monitors_me: bool,
    pub voter: bool,
    pub state: PeerState,
    /// The incarnation heard, 0 for none.
    pub incarnation: u32,
    /// This and all lower ones are dead.
    pub dead_incarnation: u32,
    pub superseded: Option<Superseded>,
    pub window: ReplayWindow,
    /// It, or a former incarnation of it, has acknowledged or echoed this incarnation of this host.
    pub has_heard_me: bool,
    answers: Answers,
    pub last_seq: u64,
    /// Reception of the newest heartbeat on any plane.
    pub last_rx_ns: u64,
    planes: [Plane; MAX_PLANES],
    /// First reception of this incarnation.
    pub since_ns: u64,
    pub timeout_ns: u64,
    /// Silence counts from here at the earliest (end of an own stall, installation of a view).
    pub floor_ns: u64,
    pub suspected: bool,
    /// Suspicions that were withheld because this host had stalled.
    pub withheld: u64,
    /// What this host has promised to it, by acknowledgements and by installing a view, ends then. Where
    /// views judge, the promise is to the incarnation in the view, whichever is heard.
    pub promised_until_ns: u64,
    /// Its newest heartbeat when it came up; the sections of that one and of those before it were not taken.
    pub up_seq: u64,
    bond: Bond,
    /// It says goodbye. A host with a lease reports that at once, others with the view that goes on without
    /// the peer.
    pub goodbye: bool,
    pub view: ViewId,
    pub view_seq: u64,
    exclude_incarnation: u32,
    /// Heartbeats in which that incarnation is still named as excluded.
    exclude_left: u32,
    /// Processes of it with something undecided: an end that waits for messages, or a gap in the messages.
    pub open: u16,
    /// It has named all its processes. One that it has not named to this host, and that was up before this
    /// host listened, has ended.
    pub all_named: bool,
}

/// What one heartbeat changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Heard {
    /// Newest of the peer on any plane.
    pub newest: bool,
    /// New on its plane.
    pub on_plane: bool,
    /// Its plane was lost before.
    pub restored: bool,
    /// This other plane is silent.
    pub lost: Option<u8>,
}

impl Peer {
    pub fn new(id: HostId, voter: bool, timeout_ns: u64) -> Peer {
        Peer {
            id,
            monitored: false,
            monitors_me: false,
            voter,
            state: PeerState::Unknown,
            incarnation: 0,
            dead_incarnation: 0,
            superseded: None,
            window: ReplayWindow::new(),
            has_heard_me: false,
            answers: Answers::default(),
            last_seq: 0,
            last_rx_ns: 0,
            planes: [Plane::default(); MAX_PLANES],
            since_ns: 0,
            timeout_ns,
            floor_ns: 0,
            suspected: false,
            withheld: 0,
            promised_until_ns: 0,
            up_seq: 0,
            bond: Bond::default(),
            goodbye: false,
            view: ViewId::NONE,
            view_seq: 0,
            exclude_incarnation: 0,
            exclude_left: 0,
            open: 0,
            all_named: false,
        }
    }

    /// Starts to follow `incarnation`; what was known of another one is forgotten.
    pub fn follow(&mut self, incarnation: u32) {
        let fresh = Peer::new(self.id, self.voter, self.timeout_ns);
        *self = Peer {
            monitored: self.monitored,
            monitors_me: self.monitors_me,
            incarnation,
            has_heard_me: self.has_heard_me,
            dead_incarnation: self.dead_incarnation,
            superseded: self.superseded,
            withheld: self.withheld,
            promised_until_ns: self.promised_until_ns,
            exclude_incarnation: self.exclude_incarnation,
            exclude_left: self.exclude_left,
            open: self.open,
            ..fresh
        };
    }

    /// This host goes on as another incarnation, to which the peer has said nothing yet.
    pub(crate) fn own_restart(&mut self, now_ns: u64) {
        self.bond = Bond { acked_by_seq: self.bond.acked_by_seq, promise_us: self.bond.promise_us, ..Bond::default() };
        self.answers.acknowledged = false;
        self.all_named = false;
        self.floor_ns = now_ns;
        if let Some(old) = &mut self.superseded {
            old.in_doubt = false;
        }
    }

    pub fn is_up(&self) -> bool {
        self.state == PeerState::Up
    }

    /// Has anything of the incarnation followed been received?
    pub fn heard(&self) -> bool {
        self.last_seq != 0
    }

    /// Keeps heartbeat `seq` for an echo if it is the newest, whether or not it is a recording. `answers`: it
    /// answers this host. Returns whether the peer has answered, now or before.
    pub(crate) fn note(&mut self, seq: u64, rx_ns: u64, answers: bool) -> bool {
        let known = &mut self.answers;
        if seq > known.noted_seq {
            // In another life, a witness has forgotten that it was answered.
            known.acknowledged &= seq - known.noted_seq < 1 << (LIFE_BITS - 1);
            known.noted_seq = seq;
            known.noted_ns = known.noted_ns.max(rx_ns);
        }
        if answers && !known.answered {
            known.answered_seq = seq;
        }
        known.answered |= answers || planted::is(Planted::TakesRecordings);
        known.answered
    }

    /// Has it answered this host, so that what it sends is no recording ([`crate::echo`])?
    pub fn has_answered(&self) -> bool {
        self.answers.answered
    }

    /// The heartbeat that held the answer.
    pub(crate) fn answered_seq(&self) -> u64 {
        self.answers.answered_seq
    }

    /// Its newest heartbeat, counted as received or not.
    pub(crate) fn noted_seq(&self) -> u64 {
        self.answers.noted_seq
    }

    /// When that came.
    pub(crate) fn noted_ns(&self) -> u64 {
        self.answers.noted_ns
    }

    /// Does it need an echo? Not once it has acknowledged this host, nor if nothing has come from it lately.
    pub(crate) fn needs_echo(&self, now_ns: u64) -> bool {
        let known = &self.answers;
        !known.acknowledged && known.noted_seq != 0 && now_ns < known.noted_ns.saturating_add(self.timeout_ns)
    }

    /// One heartbeat, whether or not it is newer than all before it on its plane.
    pub fn beat(&mut self, planes: u8, plane: u8, seq: u64, rx_ns: u64) -> Heard {
        let mut heard = Heard::default();
        let at = usize::from(plane);
        if self.last_seq == 0 {
            self.since_ns = rx_ns;
        }
        if seq > self.last_seq {
            if rx_ns.saturating_sub(self.last_rx_ns) >= self.timeout_ns / 2 {
                // Back after a silence on every plane, which says nothing about a single plane.
                self.floor_ns = self.floor_ns.max(rx_ns);
            }
            self.last_seq = seq;
            self.last_rx_ns = self.last_rx_ns.max(rx_ns);
            self.suspected = false;
            heard.newest = true;
        }
        if seq > self.planes[at].seq {
            heard.on_plane = true;
            heard.restored = self.planes[at].advance(seq, rx_ns);
            let other = 1 - at;
            if planes == 2 && self.falls_behind(other, seq, rx_ns) {
                self.planes[other].lost = true;
                heard.lost = Some(other as u8);
            }
        }
        heard
    }

    /// Is plane `at`, not lost so far, silent while the other has delivered heartbeat `seq`?
    fn falls_behind(&self, at: usize, seq: u64, rx_ns: u64) -> bool {
        let plane = &self.planes[at];
        let quiet_ns = rx_ns.saturating_sub(plane.rx_ns.max(self.floor_ns).max(self.since_ns));
        let behind = seq.saturating_sub(plane.seq);
        !plane.lost && (quiet_ns >= self.timeout_ns || quiet_ns >= PATH_QUIET_NS && behind >= PATH_BEHIND)
    }

    /// Is heartbeat `seq` newer than all that `plane` has delivered?
    pub(crate) fn is_new_on(&self, plane: u8, seq: u64) -> bool {
        seq > self.planes[usize::from(plane)].seq
    }

    /// One more packet on `plane`.
    pub(crate) fn count_received(&mut self, plane: u8) {
        self.planes[usize::from(plane)].received += 1;
    }

    /// `plane` has delivered at least that many heartbeats.
    pub(crate) fn received_at_least(&mut self, plane: u8, count: u64) {
        let received = &mut self.planes[usize::from(plane)].received;
        *received = (*received).max(count);
    }

    /// Per plane, when its newest heartbeat came; 0 for never.
    pub(crate) fn plane_rx_ns(&self) -> [u64; MAX_PLANES] {
        self.planes.map(|plane| plane.rx_ns)
    }

    /// Marks `seq` in the window over both planes.
    pub fn mark(&mut self, seq: u64) -> Seen {
        self.window.accept(seq)
    }

    /// From then on its silence means something.
    pub fn deadline_ns(&self) -> u64 {
        let timeout_ns = if planted::is(Planted::SuspectsEarly) { self.timeout_ns / 4 * 3 } else { self.timeout_ns };
        self.last_rx_ns.max(self.floor_ns).saturating_add(timeout_ns)
    }

    pub fn silent(&self, now_ns: u64) -> bool {
        now_ns >= self.deadline_ns()
    }

    /// Has each plane that works delivered something sent after heartbeat `seq`?
    pub fn passed(&self, planes: u8, seq: u64) -> bool {
        self.planes[..usize::from(planes)].iter().all(|plane| plane.lost || plane.seq > seq)
    }

    /// Highest own heartbeat that it acknowledged.
    pub fn acked_seq(&self) -> u64 {
        self.bond.acked_seq
    }

    /// Its heartbeat that said so last.
    pub(crate) fn acked_by_seq(&self) -> u64 {
        self.bond.acked_by_seq
    }

    /// It cannot suspect this host before this (own clock, margin taken off); 0 for none.
    pub fn limit_ns(&self) -> u64 {
        self.bond.limit_ns
    }

    /// Its last promise, 0 for none.
    pub fn promise_us(&self) -> u32 {
        self.bond.promise_us
    }

    /// Does it say that it hears this host's present incarnation?
    pub fn knows_me(&self) -> bool {
        self.bond.knows_me
    }

    /// Has it got word that it is heard, so that it may judge this host?
    pub fn is_greeted(&self) -> bool {
        self.bond.greeted
    }

    /// The heartbeat sent now is the first to say that the peer is heard. That is the peer's first limit, if
    /// `alone`: if peers judge this host by themselves rather than by agreed views ([`crate::lease`]).
    pub(crate) fn greet(&mut self, config: &Config, now_ns: u64, alone: bool) {
        if self.bond.greeted {
            return;
        }
        self.bond.greeted = true;
        if alone {
            self.bond.limit_ns = self.bond.limit_ns.max(lease::limit_ns(config, now_ns, self.bond.promise_us));
        }
    }

    /// A promise came with an acknowledgement.
    pub(crate) fn promises(&mut self, promise_us: u32) {
        self.bond.promise_us = promise_us;
    }

    /// Its newest heartbeat says whether it hears this host's present incarnation. Returns whether it stopped
    /// to.
    pub(crate) fn set_knows_me(&mut self, knows_me: bool) -> bool {
        core::mem::replace(&mut self.bond.knows_me, knows_me) && !knows_me
    }

    /// It acknowledges the present incarnation of this host, if no heartbeat of it yet.
    pub(crate) fn acknowledges_incarnation(&mut self) {
        self.answers.acknowledged = true;
    }

    /// Its heartbeat `seq` acknowledges heartbeat `acked_seq` of this host.
    pub(crate) fn acknowledges(&mut self, acked_seq: u64, seq: u64) {
        if acked_seq >= self.bond.acked_seq {
            (self.bond.acked_seq, self.bond.acked_by_seq) = (acked_seq, seq);
        }
    }

    /// The acknowledgement binds the peer: it cannot suspect this host before a new limit.
    pub(crate) fn bind(&mut self, config: &Config, now_ns: u64, ack: &BindingAck) {
        self.bond.sent_late &= ack.sent_ns < ack.stalled_until_ns;
        let from_receipt = planted::is(Planted::LeaseFromReceipt);
        let sent_ns = if from_receipt { ack.received_ns } else { ack.sent_ns };
        let limit_ns = lease::limit_ns(config, sent_ns, ack.promise_us);
        self.bond.limit_ns = self.bond.limit_ns.max(limit_ns);
        // Judge by the limit of what was acknowledged. A greeting sent since may reach further, and says
        // nothing of the peer.
        self.bond.bound = now_ns < limit_ns || self.bond.bound && ack.seq < self.last_seq;
    }

    /// This host stalled: what it sends from now on leaves late, and a peer whose limit has passed is bound
    /// no longer.
    pub(crate) fn note_own_stall(&mut self, now_ns: u64) {
        self.bond.bound &= now_ns < self.bond.limit_ns;
        self.bond.sent_late = true;
    }

    /// Nothing that it acknowledged counts any more.
    pub(crate) fn unbind(&mut self) {
        (self.bond.limit_ns, self.bond.bound) = (0, false);
    }

    /// May it have declared this host dead, as far as this host alone can tell?
    pub fn in_doubt(&self, now_ns: u64) -> bool {
        let Bond { sent_late, limit_ns, bound, .. } = self.bond;
        let sent_late = sent_late && now_ns >= limit_ns && !planted::is(Planted::TrustsLateHeartbeats);
        self.monitors_me && (!bound || sent_late)
    }

    /// `incarnation` is dead. The next heartbeats say so, because it may still run.
    pub(crate) fn announce_exclusion(&mut self, incarnation: u32) {
        self.exclude_incarnation = incarnation;
        self.exclude_left = EXCLUDE_HEARTBEATS;
    }

    /// The dead incarnation that the next heartbeat has to name, if any.
    pub(crate) fn exclusion(&self) -> Option<u32> {
        (self.exclude_left > 0).then_some(self.exclude_incarnation)
    }

    /// A later incarnation than [`Peer::exclusion`] that is dead too, so that the host does not come back as
    /// that.
    pub(crate) fn later_exclusion(&self) -> Option<u32> {
        self.exclusion().filter(|excluded| self.dead_incarnation > *excluded).map(|_| self.dead_incarnation)
    }

    /// A heartbeat names [`Peer::exclusion`].
    pub(crate) fn exclusion_sent(&mut self) {
        self.exclude_left -= 1;
    }

    /// It names no excluded incarnation.
    #[cfg(test)]
    pub(crate) fn without_exclusion(self) -> Peer {
        Peer { exclude_incarnation: 0, exclude_left: 0, ..self }
    }

    /// What users see of it.
    pub fn look(&self) -> PeerView {
        PeerView {
            state: self.state,
            incarnation: self.incarnation,
            last_seq: self.last_seq,
            last_rx_ns: self.plane_rx_ns(),
            timeout_ns: self.timeout_ns,
            path_lost: self.planes.map(|plane| plane.lost),
            received: self.planes.map(|plane| plane.received),
            lost: self.planes.map(|plane| plane.missing()),
            suspected: self.suspected,
            view: self.view,
        }
    }
}

#[cfg(test)]
mod tests;
