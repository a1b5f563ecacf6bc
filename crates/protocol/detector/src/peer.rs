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
//! A peer is silent when nothing new came on any plane for the pair's timeout, counted from the reception of its newest
//! heartbeat or, if later, from the end of this observer's last stall: what was sent during the stall and dropped by a
//! full queue is made good by the next heartbeat, which arrives within HB + latency_min + 2 jitter_max = TO of the stall's
//! end. So the grace after a stall is the whole timeout.

use crate::detector::LIFE_BITS;
use crate::types::{PeerState, PeerView};
use fide_types::planted::{self, Planted};
use fide_wire::{MAX_PLANES, ReplayWindow, Seen, ViewId};
use serde::{Deserialize, Serialize};

/// A plane is lost before the timeout if the other has delivered this many newer heartbeats, and it was quiet for so long:
/// both carry the same heartbeats, so that a host that stalls makes neither fall behind the other. It is no verdict.
const PATH_BEHIND: u64 = 10;
const PATH_QUIET_NS: u64 = 10_000_000;

/// An incarnation that a newer one has replaced, not yet declared dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Superseded {
    pub incarnation: u32,
    /// It was told to be up.
    pub told: bool,
    /// What was promised to it holds until then.
    pub until_ns: u64,
    /// It may have held this host dead: so this host does not hold it dead, but takes itself for excluded ([`crate::lease`]).
    pub in_doubt: bool,
    pub last_seq: u64,
    pub last_rx_ns: [u64; MAX_PLANES],
}

/// One host, as this one hears it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Peer {
    pub id: u16,
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
    /// It has answered this host, so that what it sends is no recording ([`crate::echo`]). Nothing counts as received before.
    pub answered: bool,
    /// It, or a former incarnation of it, has acknowledged or echoed this incarnation of this host.
    pub has_heard_me: bool,
    /// The heartbeat that held the answer.
    pub answered_seq: u64,
    /// Its newest heartbeat, counted as received or not, and when it came.
    pub noted_seq: u64,
    pub noted_ns: u64,
    /// It has acknowledged this host, so it has been answered.
    pub sure_of_me: bool,
    pub last_seq: u64,
    /// Reception of the newest heartbeat on any plane.
    pub last_rx_ns: u64,
    pub plane_seq: [u64; MAX_PLANES],
    pub plane_rx_ns: [u64; MAX_PLANES],
    pub plane_first: [u64; MAX_PLANES],
    pub received: [u64; MAX_PLANES],
    pub path_lost: [bool; MAX_PLANES],
    /// First reception of this incarnation.
    pub since_ns: u64,
    pub timeout_ns: u64,
    /// Silence counts from here at the earliest (end of an own stall, installation of a view).
    pub floor_ns: u64,
    pub suspected: bool,
    pub withheld: u64,
    /// What this host has promised to it, by acknowledgements and by installing a view, ends then. Where views judge, to the
    /// incarnation that is in the view, whichever is heard.
    pub promised_until_ns: u64,
    /// Its newest heartbeat when it came up: what that one and those before it carried was not taken.
    pub up_seq: u64,
    /// Highest own heartbeat that it acknowledged.
    pub acked_seq: u64,
    /// Its heartbeat that said so last.
    pub acked_by_seq: u64,
    /// It cannot suspect this host before this (own clock, margin taken off); 0 for none.
    pub limit_ns: u64,
    /// Its newest heartbeat acknowledged one of this host's so early that the peer could not hold this host dead then, and
    /// this host has not stood still beyond its limit since. Only such a peer is judged ([`crate::lease`]).
    pub bound: bool,
    /// This host has stood still since it sent what this peer acknowledged last: what it has sent since left late.
    pub sent_late: bool,
    /// Its last promise, 0 for none.
    pub promise_us: u32,
    /// It says goodbye. Told at once by who has a lease, else with the view that goes on without it.
    pub goodbye: bool,
    /// It said that it hears this host's present incarnation.
    pub knows_me: bool,
    /// It was told that it is heard: from then on it may judge this host.
    pub greeted: bool,
    pub view: ViewId,
    pub view_seq: u64,
    /// A dead incarnation of it still speaks: it is told so for that many heartbeats.
    pub exclude_incarnation: u32,
    pub exclude_left: u32,
    /// Processes of it with something undecided (held verdict, gap in the piggybacks).
    pub open: u16,
    /// It has named all its processes: one that it has not told this host of, and that was up before this host listened, has ended.
    pub all_named: bool,
}

/// What one heartbeat changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Heard {
    /// Newest of the peer on any plane.
    pub newest: bool,
    /// New on its plane.
    pub on_plane: bool,
    pub restored: bool,
    /// This other plane is silent.
    pub lost: Option<u8>,
}

impl Peer {
    pub fn new(id: u16, voter: bool, timeout_ns: u64) -> Peer {
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
            answered: false,
            has_heard_me: false,
            answered_seq: 0,
            noted_seq: 0,
            noted_ns: 0,
            sure_of_me: false,
            last_seq: 0,
            last_rx_ns: 0,
            plane_seq: [0; MAX_PLANES],
            plane_rx_ns: [0; MAX_PLANES],
            plane_first: [0; MAX_PLANES],
            received: [0; MAX_PLANES],
            path_lost: [false; MAX_PLANES],
            since_ns: 0,
            timeout_ns,
            floor_ns: 0,
            suspected: false,
            withheld: 0,
            promised_until_ns: 0,
            up_seq: 0,
            acked_seq: 0,
            acked_by_seq: 0,
            limit_ns: 0,
            bound: false,
            sent_late: false,
            promise_us: 0,
            goodbye: false,
            knows_me: false,
            greeted: false,
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

    /// Anything received of the incarnation followed?
    pub fn heard(&self) -> bool {
        self.last_seq != 0
    }

    /// Keeps the newest heartbeat for an echo. In another life of a witness, it has forgotten what it was answered.
    pub fn note(&mut self, seq: u64, rx_ns: u64) {
        if seq > self.noted_seq {
            self.sure_of_me &= seq - self.noted_seq < 1 << (LIFE_BITS - 1);
            self.noted_seq = seq;
            self.noted_ns = self.noted_ns.max(rx_ns);
        }
    }

    /// Needs no echo: it has said that it hears this host, or nothing has come from it lately.
    pub fn knows_enough(&self, now_ns: u64) -> bool {
        self.sure_of_me || self.noted_seq == 0 || now_ns >= self.noted_ns.saturating_add(self.timeout_ns)
    }

    /// One heartbeat, newer than all before it on its plane or not.
    pub fn beat(&mut self, planes: u8, plane: u8, seq: u64, rx_ns: u64) -> Heard {
        let mut heard = Heard::default();
        let p = usize::from(plane);
        if self.last_seq == 0 {
            self.since_ns = rx_ns;
        }
        if seq > self.last_seq {
            if rx_ns.saturating_sub(self.last_rx_ns) >= self.timeout_ns / 2 {
                // Back after a silence on every plane: that says nothing about one of them.
                self.floor_ns = self.floor_ns.max(rx_ns);
            }
            self.last_seq = seq;
            self.last_rx_ns = self.last_rx_ns.max(rx_ns);
            self.suspected = false;
            heard.newest = true;
        }
        if seq > self.plane_seq[p] {
            let jump = seq - self.plane_seq[p];
            if self.plane_seq[p] == 0 {
                self.plane_first[p] = seq;
            } else if jump >= 1 << (LIFE_BITS - 1) {
                // Another life of a witness: what is between was never sent.
                self.plane_first[p] += jump - 1;
            }
            self.plane_seq[p] = seq;
            self.plane_rx_ns[p] = self.plane_rx_ns[p].max(rx_ns);
            heard.on_plane = true;
            heard.restored = core::mem::take(&mut self.path_lost[p]);
            let other = 1 - p;
            if planes == 2 && !self.path_lost[other] {
                let quiet_since = self.plane_rx_ns[other].max(self.floor_ns).max(self.since_ns);
                let quiet_ns = rx_ns.saturating_sub(quiet_since);
                let behind = seq.saturating_sub(self.plane_seq[other]);
                if quiet_ns >= self.timeout_ns || quiet_ns >= PATH_QUIET_NS && behind >= PATH_BEHIND {
                    self.path_lost[other] = true;
                    heard.lost = Some(other as u8);
                }
            }
        }
        heard
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

    /// It may hold this host dead, as far as this host alone can tell.
    pub fn in_doubt(&self, now_ns: u64) -> bool {
        let sent_late = self.sent_late && now_ns >= self.limit_ns && !planted::is(Planted::TrustsLateHeartbeats);
        self.monitors_me && (!self.bound || sent_late)
    }

    /// Each plane that works has delivered something sent after heartbeat `seq`.
    pub fn passed(&self, planes: u8, seq: u64) -> bool {
        (0..usize::from(planes)).all(|p| self.path_lost[p] || self.plane_seq[p] > seq)
    }

    pub fn look(&self) -> PeerView {
        let lost = |p: usize| {
            let sent = if self.plane_seq[p] == 0 { 0 } else { self.plane_seq[p] - self.plane_first[p] + 1 };
            sent.saturating_sub(self.received[p])
        };
        PeerView {
            state: self.state,
            incarnation: self.incarnation,
            last_seq: self.last_seq,
            last_rx_ns: self.plane_rx_ns,
            timeout_ns: self.timeout_ns,
            path_lost: self.path_lost,
            received: self.received,
            lost: [lost(0), lost(1)],
            suspected: self.suspected,
            view: self.view,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_plane_is_a_lost_path_once() {
        let mut p = Peer::new(2, true, 100);
        p.beat(2, 0, 1, 1000);
        assert_eq!(p.beat(2, 0, 2, 1040).lost, None);
        assert_eq!(p.beat(2, 0, 3, 1080).lost, None);
        assert_eq!(p.beat(2, 0, 4, 1100).lost, Some(1));
        assert_eq!(p.beat(2, 0, 5, 1140).lost, None);
        assert!(p.beat(2, 1, 5, 1141).restored);
        assert_eq!(p.beat(2, 0, 6, 1500).lost, None, "silent on both");
        assert_eq!(p.beat(2, 1, 6, 1501).lost, None);
        assert_eq!(p.beat(1, 0, 5, 9999).lost, None);
    }

    #[test]
    fn what_a_former_life_did_not_send_is_not_lost() {
        let mut p = Peer::new(2, true, 100);
        for seq in [1, 2, 4, (1 << LIFE_BITS) + 1, (1 << LIFE_BITS) + 3] {
            p.beat(1, 0, seq, 1000 + seq % 100);
            p.received[0] += 1;
        }
        assert_eq!(p.look().lost[0], 2, "3, and one of the second life");
        let mut p = Peer::new(2, true, 100);
        p.beat(1, 0, 7 << LIFE_BITS, 1000);
        p.received[0] += 1;
        assert_eq!(p.look().lost[0], 0);
    }

    #[test]
    fn silence_counts_from_the_newest_and_from_the_floor() {
        let mut p = Peer::new(2, true, 100);
        p.beat(2, 0, 5, 1000);
        p.beat(2, 1, 5, 1050);
        assert_eq!(p.deadline_ns(), 1100);
        p.beat(2, 1, 4, 1090);
        assert_eq!(p.deadline_ns(), 1100);
        p.floor_ns = 1500;
        assert_eq!(p.deadline_ns(), 1600);
    }

    #[test]
    fn passed_needs_each_working_plane() {
        let mut p = Peer::new(2, true, 100);
        p.beat(2, 0, 7, 1000);
        assert!(!p.passed(2, 6));
        p.beat(2, 1, 7, 1000);
        assert!(p.passed(2, 6) && !p.passed(2, 7));
        p.path_lost[1] = true;
        p.beat(2, 0, 8, 1001);
        assert!(p.passed(2, 7));
    }

    #[test]
    fn a_plane_that_falls_behind_is_lost_before_a_long_timeout() {
        const MS: u64 = 1_000_000;
        let mut p = Peer::new(2, true, 60 * MS);
        for seq in 1..=5 {
            p.beat(2, 0, seq, seq * MS);
            p.beat(2, 1, seq, seq * MS);
        }
        for seq in 6..15 {
            assert_eq!(p.beat(2, 0, seq, seq * MS).lost, None, "{seq}");
        }
        assert_eq!(p.beat(2, 0, 15, 15 * MS).lost, Some(1));
        assert!(p.beat(2, 1, 15, 15 * MS + 1).restored);
        // A host that stalls is late on both.
        assert_eq!(p.beat(2, 0, 16, 50 * MS).lost, None);
        assert_eq!(p.beat(2, 1, 16, 50 * MS).lost, None);
    }
}
