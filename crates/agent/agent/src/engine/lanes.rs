// SPDX-License-Identifier: Apache-2.0
//! Lanes of programs (X-Lane §2.4): a program's messages leave in one packet per period over each tree;
//! messages that arrive are delivered to the programs that listen.
//!
//! All memory comes with the command that opens a lane, and goes back with the command that closes it.

use std::sync::atomic::Ordering;

use fide_agent_api::event::{EventRecord, kind};
use fide_agent_api::session::{LANE_MESSAGE_MAX, LANE_OUTBOX_BYTES, LaneMessage};
use fide_detector::PeerState;
use fide_lane::{Copies, Finding, Inlet, LANES_MAX, Terms, lane_of, number_of};
use fide_net::link::Sender;
use fide_types::{ClientSet, HostId, MAX_HOSTS, PerHost};
use fide_wire::{ChunkPacket, chunk};

use super::Engine;
use crate::{
    clock::{Clocks, Now},
    frozen::FrozenLanes,
    lane::Lane,
    snapshot::LaneView,
    tree_report::{Report, Seen},
};

/// Messages taken from one program's outbox in one turn, before the others have theirs.
const MESSAGES_PER_TURN: usize = 32;
/// Messages that a client's outbox can hold, each with its header word: messages added meanwhile are not
/// dropped.
const OLD_MESSAGES_MAX: usize = LANE_OUTBOX_BYTES / 8;
/// Services are a byte; 0 is an empty place in a packet.
const SERVICES: usize = 256;

/// The loop's state of all lanes.
#[derive(Debug)]
pub(super) struct Lanes {
    own: Box<[Option<Box<Lane>>; LANES_MAX]>,
    /// Clients of any lane.
    clients: ClientSet,
    inlets: PerHost<[Inlet; LANES_MAX]>,
    copies: PerHost<[Copies; LANES_MAX]>,
    /// Clients that listen to a service.
    listeners: Box<[ClientSet; SERVICES]>,
}

impl Lanes {
    pub(super) fn new() -> Self {
        Self {
            own: Box::new([const { None }; LANES_MAX]),
            clients: ClientSet::EMPTY,
            inlets: PerHost::new(MAX_HOSTS, |_| [Inlet::default(); LANES_MAX]),
            copies: PerHost::new(MAX_HOSTS, |_| [Copies::default(); LANES_MAX]),
            listeners: Box::new([ClientSet::EMPTY; SERVICES]),
        }
    }

    /// When the next packet is due; `u64::MAX` if none waits.
    pub(super) fn due_ns(&self) -> u64 {
        self.own.iter().flatten().filter_map(|lane| lane.outlet.due_ns()).min().unwrap_or(u64::MAX)
    }

    pub(super) fn freeze(&self) -> FrozenLanes {
        let newest = self.inlets.iter().flat_map(|(host, lanes)| {
            (0u8..).zip(lanes).filter_map(move |(lane, inlet)| {
                inlet.newest().map(|(incarnation, number)| (host, lane, incarnation, number))
            })
        });
        let listeners = (0u8..=u8::MAX).zip(*self.listeners).filter(|(_, clients)| !clients.is_empty());
        FrozenLanes { newest: newest.collect(), listeners: listeners.collect() }
    }

    pub(super) fn resume(&mut self, frozen: FrozenLanes) {
        for (host, lane, incarnation, number) in frozen.newest {
            if let Some(inlet) = self.inlets.get_mut(host).and_then(|lanes| lanes.get_mut(usize::from(lane))) {
                *inlet = Inlet::resumed(incarnation, number);
            }
        }
        for (service, clients) in frozen.listeners {
            self.listeners[usize::from(service)] = clients;
        }
    }

    pub(super) fn forget_client(&mut self, client: u8) {
        self.own.iter_mut().flatten().for_each(|lane| lane.clients.remove(client));
        self.listeners.iter_mut().for_each(|clients| clients.remove(client));
        self.clients.remove(client);
    }

    pub(super) fn views(&self) -> impl Iterator<Item = Option<LaneView>> + '_ {
        self.own.iter().map(|lane| {
            lane.as_deref().map(|lane| LaneView {
                name: lane.name,
                terms: lane.outlet.terms(),
                trees: lane.trees.iter().flatten().count(),
                clients: lane.clients.len(),
                sent: lane.outlet.sent(),
            })
        })
    }

    fn lane(&mut self, handle: u8) -> Option<&mut Lane> {
        self.own.get_mut(usize::from(handle))?.as_deref_mut()
    }

    fn count_clients(&mut self) {
        self.clients = self.own.iter().flatten().fold(ClientSet::EMPTY, |clients, lane| clients.union(lane.clients));
    }

    /// From now on a client listens to a service, or not.
    pub(super) fn listen(&mut self, client: u8, service: u8, on: bool) {
        let clients = &mut self.listeners[usize::from(service)];
        if on {
            clients.insert(client);
        } else {
            clients.remove(client);
        }
    }

    pub(super) fn change(&mut self, now: Now, handle: u8, terms: Terms, type_of_service: u8) {
        let Some(lane) = self.lane(handle) else { return };
        if lane.outlet.terms() != terms {
            lane.outlet.change(now.mono_ns, terms);
        }
        for sender in lane.trees.iter_mut().flatten() {
            // The kernel refuses this for no socket of ours: it names a traffic class, and needs no right.
            let _ = sender.set_type_of_service(type_of_service);
        }
    }

    /// Replaces the sender of a tree. Returns the former one, which the caller has to free.
    pub(super) fn aim(&mut self, handle: u8, tree: u8, sender: Box<Sender>) -> Option<Box<Sender>> {
        match self.lane(handle).and_then(|lane| lane.trees.get_mut(usize::from(tree))) {
            Some(place) => place.replace(sender),
            None => Some(sender),
        }
    }
}

impl Engine {
    /// Opens a lane for its clients. Returns a lane that was in its place.
    pub(super) fn open_lane(&mut self, handle: u8, lane: Box<Lane>) -> Option<Box<Lane>> {
        self.drop_old_messages(lane.clients);
        let Some(place) = self.lanes.own.get_mut(usize::from(handle)) else { return Some(lane) };
        let before = place.replace(lane);
        self.lanes.count_clients();
        before
    }

    pub(super) fn share_lane(&mut self, handle: u8, clients: ClientSet) {
        let Some(before) = self.lanes.lane(handle).map(|lane| std::mem::replace(&mut lane.clients, clients)) else {
            return;
        };
        self.drop_old_messages(clients.minus(before));
        self.lanes.count_clients();
    }

    pub(super) fn close_lane(&mut self, handle: u8) -> Option<Box<Lane>> {
        let lane = self.lanes.own.get_mut(usize::from(handle))?.take();
        self.lanes.count_clients();
        lane
    }

    /// Drops messages that clients left for lanes of a former agent. They are outdated, and sending them
    /// all at once would exceed any contract.
    fn drop_old_messages(&mut self, clients: ClientSet) {
        let mut buffer = [0; LANE_MESSAGE_MAX];
        for client in clients.minus(self.lanes.clients).iter() {
            let Some(session) = self.sessions.get_mut(client) else { continue };
            for _ in 0..OLD_MESSAGES_MAX {
                if !matches!(session.memory.region.pop_lane(&mut buffer), Ok(Some(_))) {
                    break;
                }
                self.counters.lane_messages_stray += 1;
            }
        }
    }

    /// Takes the messages that programs have left, and sends the packets that are due.
    pub(super) fn serve_lanes(&mut self, clocks: &mut impl Clocks) {
        if self.lanes.clients.is_empty() {
            return;
        }
        self.drain_lane_outboxes(clocks.now());
        let incarnation = self.detector.config().incarnation;
        for lane in self.lanes.own.iter_mut().flatten() {
            // The clock is read for each lane: its next packet leaves a period after this one, however long
            // the lanes before it took.
            let Ok(Some(packet)) = lane.outlet.poll(clocks.now().mono_ns, incarnation) else { continue };
            for (plane, sender) in (0u8..).zip(&mut lane.trees) {
                let Some(sender) = sender else { continue };
                chunk::seal(packet, plane, &self.keys.current);
                if sender.send(packet).is_err() {
                    self.counters.sends_failed += 1;
                }
            }
            lane.counters.packets.store(lane.outlet.sent().packets, Ordering::Relaxed);
            self.counters.lane_packets_sent += 1;
        }
    }

    fn drain_lane_outboxes(&mut self, now: Now) {
        let mut buffer = [0; LANE_MESSAGE_MAX];
        for client in self.lanes.clients.iter() {
            for count in 1..=MESSAGES_PER_TURN {
                let Some(session) = self.sessions.get_mut(client) else { break };
                let LaneMessage { handle, service, bytes } = match session.memory.region.pop_lane(&mut buffer) {
                    Ok(Some(message)) => message,
                    Ok(None) => break,
                    Err(_) => {
                        self.counters.outbox_broken += 1;
                        break;
                    }
                };
                if count == MESSAGES_PER_TURN {
                    self.busy_turn = true;
                }
                match self.lanes.lane(handle).filter(|lane| service != 0 && lane.clients.contains(client)) {
                    Some(lane) => {
                        if lane.outlet.offer(now.mono_ns, service, bytes).is_err() {
                            let exceeded = lane.outlet.sent().exceeded;
                            lane.counters.exceeded.store(exceeded, Ordering::Relaxed);
                            self.counters.lane_messages_exceeded += 1;
                        }
                    }
                    None => self.counters.lane_messages_stray += 1,
                }
            }
        }
    }

    /// Takes in a packet of a lane. `whole`: its tag is right.
    pub(super) fn chunks_received(&mut self, rx_ns: u64, payload: &[u8], whole: bool) {
        let Ok(packet) = ChunkPacket::new(payload) else {
            self.counters.malformed += 1;
            return;
        };
        let (host, index) = (packet.sender(), lane_of(packet.seq()));
        let incarnation = packet.incarnation();
        let known = host != self.facts.me
            && host <= self.facts.members
            && usize::from(index) < LANES_MAX
            && self
                .detector
                .peer(host)
                .is_some_and(|peer| peer.incarnation == incarnation && peer.state == PeerState::Up);
        if !known {
            self.counters.refused += 1;
            return;
        }
        // A copy of the inlet, so that `deliver_each` can borrow the engine.
        let mut inlet = self.lanes.inlets[host][usize::from(index)];
        let before = inlet.received();
        let record = EventRecord {
            kind: kind::LANE_MESSAGE,
            host,
            incarnation,
            code: i32::from(index),
            seq: packet.seq(),
            rx_ns,
            plane: packet.plane(),
            ..EventRecord::default()
        };
        inlet.take(&packet, whole, |message| {
            let clients = self.lanes.listeners[usize::from(message.service)];
            if clients.is_empty() {
                self.counters.lane_messages_unheard += 1;
            }
            self.deliver_each(clients, EventRecord { slot: message.service, ..record }, message.bytes);
        });
        let after = inlet.received();
        self.counters.lane_packets_received += after.packets - before.packets;
        self.counters.lane_packets_lost += after.lost - before.lost;
        self.counters.lane_chunks_damaged += after.damaged - before.damaged;
        self.lanes.inlets[host][usize::from(index)] = inlet;
        if whole && self.facts.trees {
            let (plane, number) = (usize::from(packet.plane()), number_of(packet.seq()));
            let late_max_ns = self.timing.late_max_ns(host);
            let copies = &mut self.lanes.copies[host][usize::from(index)];
            let found = copies.arrived(plane, number, rx_ns, late_max_ns);
            self.report(host, Some(index), found);
        }
    }

    /// Reports a finding about a tree to the controller.
    pub(super) fn report(&self, host: HostId, label: Option<u8>, found: Option<(usize, Finding)>) {
        let Some((plane, finding)) = found else { return };
        // The detector itself reports which heartbeats are missing.
        if label.is_none() && finding != Finding::Slow {
            return;
        }
        let plane = u8::try_from(plane).expect("two planes");
        self.exchange.report(Report { host, label, plane, seen: Seen::Copies(finding) });
    }
}
