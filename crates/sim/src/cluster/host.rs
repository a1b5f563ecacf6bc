// SPDX-License-Identifier: Apache-2.0
//! One host of a world.

use std::collections::VecDeque;

use fide_agreement::{Group, HostSet, Lease, Standing, group, transfer};
use fide_detector::{
    Config, Detector, Member, PeerState, Role, Trust, Vote,
    planted::{self, Planted},
};
use fide_wire::{Membership, PAYLOAD_MAX, PIGGYBACK_MAX, ViewId};

use super::{
    disk::Disk,
    plan::{HEARTBEAT_NS, Plan},
    protocol::Protocol,
    state::State,
};

/// Datagrams and heartbeats that wait for a host that stands still, as in a socket's queue; more are lost.
pub(super) const INBOX_MAX: usize = 256;
/// Which group; there is no other.
const GROUP: u64 = 0xf1de;
/// Bytes of a payload, and of a user's state.
pub(super) const PAYLOAD_MAX_BYTES: u64 = 4096;
/// Bytes of it in a datagram.
const CHUNK_MAX: usize = 400;
/// Between two looks at what was not answered.
const RESEND_NS: u64 = 3 * HEARTBEAT_NS;

/// A packet on its way.
#[derive(Debug)]
pub(super) struct Packet {
    pub(super) from: u16,
    pub(super) plane: u8,
    /// Of the group, not of the detector.
    pub(super) group: bool,
    pub(super) bytes: Vec<u8>,
}

/// A clock that runs at its own pace.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    drift_ppm: i64,
    offset_ns: u64,
}

impl Clock {
    pub(super) fn new((drift_ppm, offset_ns): (i64, u64)) -> Self {
        Self { drift_ppm, offset_ns }
    }

    pub(super) fn local_ns(self, now_ns: u64) -> u64 {
        (signed(now_ns) + signed(now_ns) * self.drift_ppm / 1_000_000).cast_unsigned() + self.offset_ns
    }

    /// The first true time at which this clock shows `local_ns`, or a little later; never, if that is too far away.
    pub(super) fn true_ns(self, local_ns: u64) -> u64 {
        let run_ns = local_ns.saturating_sub(self.offset_ns);
        if run_ns > LONGEST_NS {
            return u64::MAX;
        }
        (signed(run_ns) * 1_000_000 / (1_000_000 + self.drift_ppm) + 1).cast_unsigned()
    }
}

/// No run takes longer: an hour.
const LONGEST_NS: u64 = 3_600_000_000_000;

fn signed(ns: u64) -> i64 {
    debug_assert!(ns <= LONGEST_NS, "a run of {ns} ns");
    ns.cast_signed()
}

pub(super) struct Host<P: Protocol> {
    pub(super) id: u16,
    pub(super) clock: Clock,
    /// None: crashed.
    pub(super) detector: Option<Detector>,
    pub(super) incarnation: u32,
    pub(super) group: Option<Group<P>>,
    /// Of the process whose messages ride on heartbeats.
    slot: u8,
    /// There is a group.
    pub(super) record: Disk<()>,
    /// Of a witness: its vote, and how often it has started.
    votes: Disk<(Vote, u32)>,
    lives: u32,
    /// Of its user: instances told or taken over, and what they come to.
    pub(super) state: State,
    pub(super) inbox: VecDeque<Packet>,
    /// True time.
    pub(super) paused_until_ns: u64,
    /// Its next turn, true time; other turns that were planned are void.
    pub(super) turn_ns: u64,
    /// Excluded: back as another incarnation, true time.
    pub(super) restart_ns: Option<u64>,
    /// Own clock.
    pub(super) resend_ns: u64,
    /// Copies that it still sends before it crashes.
    pub(super) dies_after: Option<u32>,
}

impl<P: Protocol> Host<P> {
    pub(super) fn new(id: u16, clock: Clock) -> Self {
        Self {
            id,
            clock,
            detector: None,
            incarnation: 0,
            group: None,
            slot: 0,
            record: Disk::default(),
            votes: Disk::default(),
            lives: 0,
            state: State::default(),
            inbox: VecDeque::new(),
            paused_until_ns: 0,
            turn_ns: u64::MAX,
            restart_ns: None,
            resend_ns: 0,
            dies_after: None,
        }
    }

    /// A witness that has a vote on its disk goes on as the incarnation that it was, and not as this one.
    pub(super) fn start(&mut self, plan: &Plan, now_ns: u64, incarnation: u32) {
        let recalled = self.votes.read().filter(|_| self.is_witness(plan));
        let incarnation = recalled.map_or(incarnation, |(vote, _)| vote.incarnation);
        let all = HostSet::first(usize::from(plan.hosts));
        let members = (1..=plan.hosts).map(|id| Member {
            id,
            name: format!("h{id}").parse().expect("a name"),
            role: if plan.group().contains(id) { Role::Voter } else { Role::Witness },
            monitors: all.minus(HostSet::from_iter([id])),
        });
        let config = Config {
            me: self.id,
            incarnation,
            members: members.collect(),
            planes: 2,
            heartbeat_ns: HEARTBEAT_NS,
            trust: Trust::Lease,
            policy: plan.policy,
            timeout_ns: plan.timeout_ns,
            stall_slack_ns: HEARTBEAT_NS,
            drift_ppm: plan.drift_ppm,
            piggyback_max: PIGGYBACK_MAX,
            payload_max: PAYLOAD_MAX,
        };
        self.incarnation = incarnation;
        let local_ns = self.clock.local_ns(now_ns);
        let detector = match recalled {
            Some((mut vote, lives)) => {
                self.lives = lives + 1;
                if planted::is(Planted::ForgetsVote) {
                    vote = Vote { id: ViewId::NONE, members: Membership::EMPTY, promised: 0, accepted: None, ..vote };
                }
                Detector::resume(config, &vote, self.lives, local_ns)
            }
            None => Detector::new(config, local_ns),
        };
        let mut detector = detector.expect("a good configuration");
        if self.is_witness(plan) {
            self.votes.write((detector.vote(), self.lives));
            self.votes.sync();
        }
        if P::RIDES {
            self.slot = detector.join(local_ns, "member".parse().expect("a name")).expect("room for one").slot;
        }
        self.detector = Some(detector);
        self.inbox.clear();
        self.paused_until_ns = 0;
        self.restart_ns = None;
        self.dies_after = None;
        self.turn_ns = now_ns;
        self.enter(plan);
    }

    fn group(&self, plan: &Plan) -> group::Config<P::Setting> {
        group::Config {
            group: GROUP,
            me: self.id,
            incarnation: self.incarnation,
            hosts: plan.group(),
            setting: P::setting(plan),
            tail_max: plan.tail_max,
            transfer: transfer::Config {
                chunk_max: CHUNK_MAX,
                payload_max: PAYLOAD_MAX_BYTES,
                held_max: 2 * plan.tail_max + 64 * PAYLOAD_MAX_BYTES,
                wants_max: 4,
                arriving_max: 8,
            },
        }
    }

    /// It founds its group with the others, or asks to be let in, and knows nothing.
    fn enter(&mut self, plan: &Plan) {
        self.state = State::default();
        if self.is_witness(plan) {
            return;
        }
        let enter = if self.record.read().is_some() { Group::join } else { Group::form };
        self.group = Some(enter(self.group(plan)).expect("a good group"));
        self.tell_who_is_up();
    }

    fn tell_who_is_up(&mut self) {
        let (Some(group), Some(detector)) = (&mut self.group, &self.detector) else { return };
        for id in 1..=detector.config().members.len() as u16 {
            if let Some(peer) = detector.peer(id).filter(|peer| peer.state == PeerState::Up) {
                group.up(id, peer.incarnation);
            }
        }
    }

    pub(super) fn is_witness(&self, plan: &Plan) -> bool {
        !plan.group().contains(self.id)
    }

    /// Its vote is on disk before it is said. It may crash before that, after it, or in the middle of it.
    pub(super) fn store_vote(&mut self, mut crashes: impl FnMut() -> bool) -> bool {
        let Some(detector) = &self.detector else { return true };
        let vote = (detector.vote(), self.lives);
        if self.votes.read() == Some(vote) {
            return true;
        }
        if crashes() {
            return false;
        }
        self.votes.write(vote);
        if crashes() {
            return false;
        }
        if !planted::is(Planted::VotesUnsynced) {
            self.votes.sync();
        }
        !crashes()
    }

    pub(super) fn crash(&mut self) {
        self.record.crash();
        self.votes.crash();
        self.detector = None;
        self.group = None;
        self.inbox.clear();
        self.turn_ns = u64::MAX;
        self.restart_ns = None;
        self.dies_after = None;
    }

    pub(super) fn lease(&self, now_ns: u64) -> Lease {
        let until_ns = self.detector.as_ref().map_or(0, Detector::lease_until_ns);
        Lease { now_ns: self.clock.local_ns(now_ns), until_ns }
    }

    /// Speaks for the group: the one thing that two must never do at once.
    pub(super) fn leads(&self, now_ns: u64) -> bool {
        self.group.as_ref().is_some_and(|group| group.may_answer(self.lease(now_ns)))
    }

    /// As another incarnation, of which nobody knows yet; its group is to be joined.
    pub(super) fn begin_again(&mut self, plan: &Plan, now_ns: u64, incarnation: u32) {
        self.restart_ns = None;
        self.incarnation = incarnation;
        let local_ns = self.clock.local_ns(now_ns);
        if let Some(detector) = &mut self.detector {
            detector.restart(local_ns, incarnation).expect("a higher incarnation");
            self.enter(plan);
        }
    }

    /// It is a member, or not.
    pub(super) fn standing(&self) -> Option<Standing> {
        self.group.as_ref().map(Group::standing)
    }

    /// Detector and group do what is due; false if nothing lives here.
    pub(super) fn turn(&mut self, now_ns: u64) -> bool {
        let local_ns = self.clock.local_ns(now_ns);
        let Some(detector) = &mut self.detector else { return false };
        detector.tick(local_ns);
        let lease = self.lease(now_ns);
        if self.resend_ns <= local_ns
            && let Some(group) = &mut self.group
        {
            self.resend_ns = local_ns + RESEND_NS;
            group.resend(lease);
        }
        true
    }

    /// What was received, or is refused, which is all the same here.
    pub(super) fn receive(&mut self, now_ns: u64, packet: &Packet) -> bool {
        let local_ns = self.clock.local_ns(now_ns);
        match (packet.group, &mut self.group, &mut self.detector) {
            (true, Some(group), Some(detector)) => {
                group.heard_by(detector.heard_by());
                group.receive(packet.from, &packet.bytes).is_ok()
            }
            (false, _, Some(detector)) => {
                detector.handle_packet(local_ns, local_ns, packet.plane, &packet.bytes).is_ok()
            }
            _ => false,
        }
    }

    /// Heartbeats have brought this, of that host.
    pub(super) fn broadcast(&mut self, from: u16, bytes: &[u8]) {
        if let (Some(group), Some(detector)) = (&mut self.group, &self.detector) {
            group.heard_by(detector.heard_by());
            // Or is refused, which is all the same here.
            let _ = group.receive(from, bytes);
        }
    }

    /// What its group has for the next heartbeat goes there. What does not fit is sent again otherwise.
    pub(super) fn ride(&mut self, datagram: &mut Vec<u8>) -> bool {
        let (Some(group), Some(detector)) = (&mut self.group, &mut self.detector) else { return false };
        let rides = P::RIDES && group.poll_broadcast(datagram);
        if rides {
            let _ = detector.piggyback(self.slot, datagram);
        }
        rides
    }

    /// When it has to have a turn, true time.
    pub(super) fn deadline_ns(&self) -> u64 {
        let Some(detector) = &self.detector else { return u64::MAX };
        let mut local_ns = detector.poll_timeout();
        if self.group.is_some() {
            local_ns = local_ns.min(self.resend_ns);
        }
        self.clock.true_ns(local_ns).min(self.restart_ns.unwrap_or(u64::MAX))
    }
}
