// SPDX-License-Identifier: Apache-2.0
//! A member's process: `fide-group`'s own order of events, packets and sends, between the agent of its host
//! and the network of this world.

use std::collections::VecDeque;

use fide_agreement::{HostSet, Lease, Standing, View, group, group::Recalled, transfer};
use fide_client::Event;
use fide_group::{
    Spoken,
    core::{self, Core},
    packet::{Datagrams, Opened as OpenedPacket, PacketError, Sender},
};
use fide_sys::clock::Clocks;
use fide_types::HostId;

use super::{
    agent::Agent,
    client::{Client, Opened, Wants},
    disk::Disk,
    host::{CHUNK_MAX, GROUP, Packet, Record, Voice},
    plan::{HEARTBEAT_NS, Plan},
    protocol::Protocol,
    state::{PAYLOAD_MAX_BYTES, State},
};

mod copy;
mod durable;

use durable::Durable;
pub(super) use durable::Step;

/// Time between two checks for unanswered packets.
const RESEND_NS: u64 = 3 * HEARTBEAT_NS;
/// Time between two attempts to join with the agent again.
const AGAIN_NS: u64 = 20_000_000;
/// Packets that wait in the member's sockets; further ones are lost.
pub(super) const INBOX_MAX: usize = 256;
/// Packets taken in one turn.
const PACKETS_PER_TURN: usize = 64;
/// Bytes of a packet.
const PACKET_MAX: usize = 1400;
/// The name of members' processes.
pub(super) const NAME: &str = "member";

/// A packet to send: its receiver, whether it asks for a packet, and its bytes.
pub(super) type Sent = (u16, bool, Vec<u8>);

pub(super) struct Seat<P: Protocol> {
    /// The process id; no two processes have the same.
    pub(super) pid: u32,
    pub(super) core: Core<P>,
    pub(super) client: Client,
    pub(super) sender: Sender,
    /// The process has been a member.
    pub(super) held: bool,
    /// The incarnation of the host's member that the process started as.
    first: u32,
    /// The process has joined, and watches all others.
    pub(super) opened: bool,
    pub(super) inbox: VecDeque<Packet>,
    outbox: Outbox,
    /// The state of its user: instances delivered or taken over, and their sum.
    pub(super) state: State,
    /// What a durable member knows of its disk.
    pub(super) durable: Option<Durable>,
    /// The wait is over, and the user has yet to take what came.
    pub(super) waited: bool,
    /// The process of a machine that was put back, or of a clone.
    pub(super) is_copy: bool,
    /// Paused until then, true time.
    pub(super) paused_until_ns: u64,
    /// Its next turn, true time; other planned turns are void.
    pub(super) turn_ns: u64,
    /// When the process ends, true time.
    pub(super) ends_ns: u64,
    /// The newest incarnation of its host that it was notified of and has not acknowledged.
    rejoined: Option<u32>,
    /// When it tries to join again, on its own clock.
    again_ns: u64,
    /// The numbers of the newest view that was delivered to its user, and of the newest view of this member
    /// alone.
    delivered: u32,
    alone: u32,
}

/// Packets that are being filled, by receiving host.
#[derive(Clone, Default)]
struct Outbox {
    filling: Vec<(u16, bool, Vec<u8>)>,
    full: Vec<Sent>,
    buffers: Vec<Vec<u8>>,
}

impl Outbox {
    fn open(&mut self, to: u16) -> &mut (u16, bool, Vec<u8>) {
        let at = self.filling.iter().position(|(of, ..)| *of == to).unwrap_or_else(|| {
            let mut bytes = self.buffers.pop().unwrap_or_default();
            bytes.clear();
            self.filling.push((to, false, bytes));
            self.filling.len() - 1
        });
        &mut self.filling[at]
    }

    fn push(&mut self, to: u16, datagram: &[u8]) {
        if self.open(to).2.len() + 2 + datagram.len() > PACKET_MAX {
            let at = self.filling.iter().position(|(of, ..)| *of == to).expect("it is open");
            let full = self.filling.remove(at);
            self.full.push(full);
        }
        let (.., bytes) = self.open(to);
        bytes.extend_from_slice(&u16::try_from(datagram.len()).expect("a datagram").to_le_bytes());
        bytes.extend_from_slice(datagram);
    }
}

struct Port<'a> {
    inbox: &'a mut VecDeque<Packet>,
    outbox: &'a mut Outbox,
    /// Packets that were taken, for reuse.
    taken: &'a mut Vec<Packet>,
    datagrams: u64,
}

impl core::Port for Port<'_> {
    fn receive(&mut self, mut each: impl FnMut(Result<OpenedPacket<'_>, PacketError>)) {
        for _ in 0..PACKETS_PER_TURN {
            let Some(packet) = self.inbox.pop_front() else { return };
            let Packet { bytes, voice: Voice::Member { sender, asks }, .. } = &packet else {
                unreachable!("an agent's packet at a member")
            };
            let (sender, asks) = (*sender, *asks);
            self.datagrams += Datagrams::of(bytes).count() as u64;
            let spoken = Spoken::default();
            each(Ok(OpenedPacket { sender, spoken, asks, datagrams: Datagrams::of(bytes) }));
            self.taken.push(packet);
        }
    }

    fn push(&mut self, to: HostSet, datagram: &[u8], _: &dyn Fn(u16) -> usize) {
        to.iter().for_each(|host| self.outbox.push(host, datagram));
    }

    fn begin(&mut self, to: u16, asks: bool) {
        self.outbox.open(to).1 |= asks;
    }

    fn flush(&mut self, _: &dyn Fn(u16) -> usize) {
        let Outbox { filling, full, .. } = self.outbox;
        full.append(filling);
    }
}

/// The client library and, if it answers, the agent.
struct Attached<'a> {
    client: &'a mut Client,
    agent: Option<&'a mut Agent>,
    now: &'a Clocks,
    /// Events that the group was notified of, in order.
    events: &'a mut Vec<Event>,
    rejoined: &'a mut Option<u32>,
}

impl core::Agent for Attached<'_> {
    type Error = ();

    fn poll_event(&mut self) -> Result<Option<Event>, ()> {
        loop {
            let event = self.client.poll_event(self.now.raw_ns, self.agent.as_deref_mut());
            match &event {
                Some(Event::Rejoined { incarnation }) => *self.rejoined = Some(*incarnation),
                // The event of a watch that was given up.
                Some(Event::Up { monitor, .. } | Event::Piggyback { monitor, .. })
                    if !self.client.watches(*monitor) =>
                {
                    continue;
                }
                Some(Event::Verdict(verdict)) if !self.client.watches(verdict.monitor) => continue,
                _ => {}
            }
            self.events.extend(event.clone());
            return Ok(event);
        }
    }

    fn lease(&self) -> Lease {
        self.client.lease(self.now)
    }

    fn is_heard_by(&self, host: HostId) -> bool {
        self.client.is_heard_by(host)
    }

    fn piggyback(&mut self, message: &[u8]) -> bool {
        self.client.piggyback(message)
    }

    fn watch_again(&mut self, host: HostId) -> Result<Option<u32>, ()> {
        self.client.watch_again(self.agent.as_deref_mut(), host)
    }
}

/// The outcome of a turn.
#[derive(Default)]
pub(super) struct Left {
    pub(super) events: Vec<Event>,
    pub(super) taken: Vec<Packet>,
    pub(super) datagrams: u64,
    /// The agent cannot be used: the program ends.
    pub(super) failed: bool,
}

impl<P: Protocol> Seat<P> {
    /// The process founds its group with the others, or asks to be let in, and knows nothing.
    pub(super) fn new(
        plan: &Plan,
        host: HostId,
        pid: u32,
        (record, is_first): (&Record, bool),
        recalled: Option<Recalled>,
        now_ns: u64,
    ) -> Self {
        let (incarnation, is_founded) = (record.incarnation, record.is_founded);
        let config = group::Config {
            group: GROUP,
            me: host,
            incarnation,
            hosts: plan.group(),
            setting: P::setting(plan),
            tail_max: plan.tail_max,
            transfer: transfer::Config {
                chunk_max: CHUNK_MAX,
                payload_max: PAYLOAD_MAX_BYTES,
                stored_max: 2 * plan.tail_max + 64 * PAYLOAD_MAX_BYTES,
                reserved: plan.tail_max + PAYLOAD_MAX_BYTES,
                wants_max: 4,
                arriving_max: 8,
            },
        };
        let mut core = Core::<P>::new(config, is_founded, RESEND_NS).expect("a good group");
        if is_first {
            core.group.set_first_process();
        }
        let found = recalled.as_ref().and_then(|recalled| recalled.member.as_ref()?.position);
        if let Some(recalled) = recalled {
            core.group.set_durable();
            core.group.recall(recalled, &record.own);
        }
        let mut wants = vec![Wants::Join(NAME.to_owned())];
        wants.extend(core.others().iter().map(|host| Wants::Monitor(host, Some(NAME.to_owned()))));
        Self {
            pid,
            core,
            client: Client::new(pid, wants),
            sender: Sender { host, process: 0, incarnation },
            held: false,
            first: incarnation,
            opened: false,
            inbox: VecDeque::new(),
            outbox: Outbox::default(),
            state: State::default(),
            durable: plan.durable.map(|durable| Durable::new(durable, found)),
            waited: false,
            is_copy: false,
            paused_until_ns: 0,
            turn_ns: now_ns,
            ends_ns: u64::MAX,
            rejoined: None,
            again_ns: 0,
            delivered: 1,
            alone: 1,
        }
    }

    pub(super) fn standing(&self) -> Standing {
        self.core.group.standing()
    }

    /// One step of joining and watching; true once it is done.
    pub(super) fn open(&mut self, now_ns: u64, agent: Option<&mut Agent>) -> bool {
        if !self.client.open(now_ns, agent) {
            return false;
        }
        for opened in std::mem::take(&mut self.client.opened) {
            match opened {
                Opened::Joined(granted) => self.sender.process = granted.incarnation,
                Opened::Monitored(granted) => {
                    let up = granted.state == fide_agent_api::protocol::PeerState::Alive;
                    self.core.watch_found(granted.host_id, up.then_some(granted.incarnation));
                }
            }
        }
        self.opened = true;
        true
    }

    /// The part of a turn before the wait.
    pub(super) fn before(&mut self, now: &Clocks, agent: Option<&mut Agent>) {
        let Self { core, client, inbox, outbox, rejoined, .. } = self;
        let (mut events, mut taken) = (Vec::new(), Vec::new());
        let mut port = Port { inbox, outbox, taken: &mut taken, datagrams: 0 };
        core.before_wait(now.raw_ns, &mut Attached { client, agent, now, events: &mut events, rejoined }, &mut port);
    }

    /// The part of a turn after the wait.
    pub(super) fn after(&mut self, now: &Clocks, agent: Option<&mut Agent>) -> Left {
        let Self { core, client, inbox, outbox, rejoined, .. } = self;
        let mut left = Left::default();
        let (called, came) = (client.is_called(now.raw_ns), !inbox.is_empty());
        let mut port = Port { inbox, outbox, taken: &mut left.taken, datagrams: 0 };
        let mut agent = Attached { client, agent, now, events: &mut left.events, rejoined };
        left.failed = core.after_wait(&mut agent, &mut port, called, came).is_err();
        left.datagrams = port.datagrams;
        left
    }

    /// The host was excluded, or its agent started anew: the process continues as another incarnation, keeps
    /// its state, and asks to be let in.
    pub(super) fn rejoin(&mut self, now: &Clocks, agent: Option<&mut Agent>, record: &mut Disk<Record>) -> bool {
        let now_ns = now.raw_ns;
        let Some(agent) = agent.filter(|agent| !agent.is_frozen()) else { return false };
        if !self.core.is_excluded() || !self.client.is_attached() || now_ns < self.again_ns {
            return false;
        }
        self.again_ns = now_ns + AGAIN_NS;
        let incarnation = self.rejoined.take();
        // An agent that still has the name refuses; the process tries again later.
        let Some(joined) = self.client.join_again(now_ns, agent, NAME, incarnation) else { return false };
        let mut up = Vec::new();
        for host in self.core.others().iter() {
            let Ok(process) = self.client.watch_again(Some(&mut *agent), host) else { return false };
            up.push((host, process));
        }
        let before = record.read().unwrap_or_default();
        let incarnation = before.incarnation.max(self.core.group.incarnation_floor()) + 1;
        let mut own = self.core.group.own_incarnations();
        own.push(incarnation);
        record.write(Record { incarnation, own, ..before });
        record.sync();
        self.sender = Sender { process: joined.incarnation, incarnation, ..self.sender };
        self.core.rejoin(incarnation).expect("excluded, and a higher incarnation");
        up.into_iter().for_each(|(host, process)| self.core.watch_found(host, process));
        self.again_ns = 0;
        true
    }

    /// The view with which the member has just founded the group again. Like the first view it is not
    /// delivered; all other views are delivered before they begin.
    pub(super) fn found_again(&mut self, counts: impl FnOnce(&View) -> bool) -> Option<View> {
        let view = self.core.group.view()?;
        if view.number() <= self.alone || view.members().len() != 1 || self.standing() != Standing::Member {
            return None;
        }
        if !counts(view) {
            return None;
        }
        self.alone = view.number();
        (view.number() > self.delivered).then(|| view.clone())
    }

    /// Whether the process is, or was, this incarnation of its host's member.
    pub(super) fn was(&self, incarnation: u32) -> bool {
        (self.first..=self.sender.incarnation).contains(&incarnation)
    }

    /// A view was delivered to the user.
    pub(super) fn view_delivered(&mut self, view: &View) {
        self.delivered = self.delivered.max(view.number());
    }

    /// The proposer: another incarnation counts as another one.
    pub(super) fn voice(&self) -> (u32, u32) {
        (self.pid, self.sender.incarnation)
    }

    /// The part of a turn after the record was stored.
    pub(super) fn last(&mut self, now: &Clocks, agent: Option<&mut Agent>) {
        let Self { core, client, inbox, outbox, rejoined, .. } = self;
        let (mut events, mut taken) = (Vec::new(), Vec::new());
        let mut port = Port { inbox, outbox, taken: &mut taken, datagrams: 0 };
        core.end_turn(&mut Attached { client, agent, now, events: &mut events, rejoined }, &mut port);
    }

    /// The member sends what it has.
    pub(super) fn send(&mut self, now: &Clocks, agent: Option<&mut Agent>) {
        let Self { core, client, inbox, outbox, rejoined, .. } = self;
        let (mut events, mut taken) = (Vec::new(), Vec::new());
        let mut port = Port { inbox, outbox, taken: &mut taken, datagrams: 0 };
        core.send(&mut Attached { client, agent, now, events: &mut events, rejoined }, &mut port);
    }

    /// When the member needs its next turn, on its own clock.
    pub(super) fn due_ns(&mut self) -> u64 {
        let disk_ns = self.durable.as_ref().map_or(u64::MAX, Durable::due_ns);
        self.core.due_ns().min(self.client.timer_ns).min(disk_ns)
    }

    /// Packets that the member has handed to the network.
    pub(super) fn sent(&mut self) -> Vec<Sent> {
        std::mem::take(&mut self.outbox.full)
    }

    pub(super) fn give_back(&mut self, bytes: Vec<u8>) {
        self.outbox.buffers.push(bytes);
    }

    /// Something that the member would wake up for is there.
    pub(super) fn is_called(&self, now_ns: u64) -> bool {
        self.waited || self.client.is_called(now_ns) || !self.inbox.is_empty()
    }

    pub(super) fn lease(&self, now: &Clocks) -> Lease {
        self.client.lease(now)
    }

    /// The member may speak for the group: two members must never do so at once.
    pub(super) fn may_answer(&self, now: &Clocks) -> bool {
        self.opened && !self.is_replaying() && self.core.group.may_answer(self.lease(now))
    }
}
