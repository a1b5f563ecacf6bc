// SPDX-License-Identifier: Apache-2.0
//! Agents: their turns, the packets that they send, and the programs that they wake.

use fide_agreement::HostSet;
use fide_detector::{Event, Verdict};
use fide_sys::clock::Clocks;
use rand::RngExt;

use super::{
    super::{
        agent::Agent,
        check::{Checked, no_lease_outlives_its_view, one_leader},
        host::{INBOX_MAX, Kernel, Packet, Voice},
        plan::MS,
        protocol::Protocol,
    },
    NAP_NS, Next, SERVE_NS, SOON_NS, WAKE_NS, World, may_send,
};

/// How many packets are recorded; older ones are dropped.
const RECORDED_MAX: usize = 256;

impl<P: Protocol> World<'_, P> {
    pub(super) fn feed(&mut self, at: usize, packet: Packet) {
        if self.hosts[at].kernel.is_some() {
            self.kernel_takes(at, packet);
            return self.read_kernel(at);
        }
        self.stats.deliveries += 1;
        let host = &mut self.hosts[at];
        let now = host.clock.read(self.now_ns);
        let local_ns = now.raw_ns;
        if let Some(agent) = &mut host.agent {
            agent.look_at_clocks(&now);
            let newest = |agent: &Agent| {
                let of = packet.forgetful().and_then(|host| agent.detector.peer(host));
                of.map(|peer| (peer.incarnation, peer.last_seq))
            };
            let before = newest(agent);
            // A refused packet counts as lost.
            let _ = agent.detector.handle_packet(local_ns, local_ns, packet.plane, &packet.bytes);
            if newest(agent) > before {
                self.heard_forgetful(at, &packet);
            }
        }
        self.network.give_back(packet.bytes);
    }

    /// The receive program of a host takes a packet, whether or not the agent runs. True if the packet wakes
    /// the agent.
    pub(super) fn kernel_takes(&mut self, at: usize, packet: Packet) -> bool {
        self.stats.deliveries += 1;
        let host = &mut self.hosts[at];
        let rx_ns = host.clock.read(self.now_ns).raw_ns;
        let Some(kernel) = &mut host.kernel else { return false };
        let newest = |kernel: &Kernel| packet.forgetful().map(|host| kernel.slots.newest(host));
        let before = newest(kernel);
        let has_sections = kernel.slots.take(rx_ns, packet.plane, &packet.bytes, kernel.ring.len() < INBOX_MAX);
        if newest(kernel) > before {
            self.heard_forgetful(at, &packet);
        }
        if !has_sections {
            self.network.give_back(packet.bytes);
        } else if let Some(kernel) = &mut self.hosts[at].kernel {
            kernel.ring.push_back((rx_ns, packet));
        }
        has_sections
    }

    /// What the loop does at the beginning of a turn: the ring first, then the slots.
    pub(super) fn read_kernel(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        let now = host.clock.read(self.now_ns);
        let local_ns = now.raw_ns;
        let (Some(agent), Some(kernel)) = (&mut host.agent, &mut host.kernel) else { return };
        agent.look_at_clocks(&now);
        for (rx_ns, packet) in kernel.ring.drain(..) {
            let _ = agent.detector.handle_sections(local_ns, rx_ns, packet.plane, &packet.bytes);
            self.network.give_back(packet.bytes);
        }
        for beat in kernel.slots.beats() {
            let _ = agent.detector.handle_beat(local_ns, &beat);
        }
    }

    pub(super) fn agent_turn(&mut self, at: usize) -> Checked {
        let naps = !self.network.calm && self.network.chance(self.plan.nap_permille);
        let host = &mut self.hosts[at];
        if naps && host.paused_until_ns <= self.now_ns {
            host.paused_until_ns = self.now_ns + self.network.random.random_range(0..NAP_NS);
        }
        if host.paused_until_ns > self.now_ns {
            host.turn_ns = host.paused_until_ns;
            self.network.push(host.turn_ns, Next::Agent(at));
            return Ok(());
        }
        let now = host.clock.read(self.now_ns);
        let local_ns = now.raw_ns;
        let Some(agent) = &mut host.agent else { return Ok(()) };
        if agent.is_frozen() {
            return self.frozen_turn(at);
        }
        self.read_kernel(at);
        while let Some(packet) = self.hosts[at].inbox.pop_front() {
            self.feed(at, packet);
            self.follow(at)?;
            if self.hosts[at].agent.is_none() {
                return Ok(());
            }
        }
        let host = &mut self.hosts[at];
        if host.restart_ns.is_some_and(|restart_ns| restart_ns <= self.now_ns) {
            // The control thread has to store the next incarnation, and may be writing something else now.
            host.restart_ns = host.numbers.busy_until_ns().filter(|until_ns| *until_ns > self.now_ns);
            if host.restart_ns.is_none() {
                let incarnation = host.next_incarnation(self.plan, self.now_ns);
                if host.agent.as_mut().is_some_and(|agent| agent.begin_again(local_ns, incarnation)) {
                    host.incarnation = incarnation;
                }
            }
        }
        let kept = host.numbers.kept();
        let Some(agent) = &mut host.agent else { return Ok(()) };
        agent.turn(&now, kept);
        self.follow(at)
    }

    fn frozen_turn(&mut self, at: usize) -> Checked {
        let host = &mut self.hosts[at];
        let now = host.clock.read(self.now_ns);
        let voice = Voice::Agent { forgets: host.forgets() };
        let Some(agent) = &mut host.agent else { return Ok(()) };
        let others = HostSet::first(usize::from(self.plan.hosts)).minus(HostSet::from_iter([host.id]));
        if let Some(bytes) = agent.repeat(&now) {
            let mut bytes = bytes.to_vec();
            for plane in 0..2 {
                fide_wire::set_plane(&mut bytes, plane);
                for to in others.iter() {
                    self.network.send(self.now_ns, host.id, to, plane, voice, &bytes);
                }
            }
        }
        if agent.is_frozen() {
            self.plan_agent(at);
            return Ok(());
        }
        self.agent_turn(at)
    }

    /// What an agent does after its input: it sends packets, then notifies programs, then writes the table.
    pub(super) fn follow(&mut self, at: usize) -> Checked {
        let now = self.hosts[at].clock.read(self.now_ns);
        if !self.transmit(at, &now) || self.hosts[at].dies_after == Some(0) {
            self.crash(at);
            return Ok(());
        }
        let host = &mut self.hosts[at];
        host.find_itself(self.now_ns);
        let id = host.id;
        let Some(agent) = &mut host.agent else { return Ok(()) };
        let events = agent.notify_programs();
        agent.publish(&now);
        for event in events {
            match event {
                Event::Excluded { .. } => {
                    self.stats.exclusions += 1;
                    self.hosts[at].restart_ns = Some(self.now_ns + MS);
                }
                Event::PutBack { .. } => {
                    self.stats.found_out += 1;
                    // The agent does not begin a new incarnation, even if it was excluded before.
                    self.hosts[at].restart_ns = None;
                    self.found_out(at);
                }
                Event::Verdict(_) => self.stats.verdicts += 1,
                Event::ViewChanged { .. } if !self.forgotten => {
                    no_lease_outlives_its_view(self.plan, &self.hosts, at, self.now_ns)?;
                    if !self.hosts[at].is_astray() {
                        self.host_views.changed(&self.hosts[at])?;
                    }
                }
                _ => {}
            }
            self.note(|_| match event {
                Event::Verdict(verdict) => {
                    let Verdict { host, slot, incarnation, reason, evidence, .. } = verdict;
                    format!(
                        "h{id} notifies that h{host}.{slot}#{incarnation} is dead: {reason:?}, by {:?}",
                        evidence.via
                    )
                }
                Event::ViewChanged { id: view, members } => {
                    let members: Vec<u16> = members.iter().collect();
                    format!("h{id} is in view {}.{} of {members:?}", view.generation, view.number)
                }
                event => format!("h{id} notifies {event:?}"),
            });
            self.verdicts.notified(at, &event, &self.hosts, self.now_ns, self.forgotten)?;
            self.calm.notified(self.plan, &self.hosts, at, &event, self.now_ns)?;
        }
        self.acts(at, &now)?;
        self.ask_disk(at);
        self.plan_agent(at);
        self.wake(at, now.raw_ns);
        if self.torn { Ok(()) } else { one_leader(&self.hosts, at, self.now_ns) }
    }

    /// Checks the incarnation and the view that the agent's table lets programs act by.
    fn acts(&mut self, at: usize, now: &Clocks) -> Checked {
        let host = &self.hosts[at];
        let table = host.agent.as_ref().map(|agent| &agent.table);
        let Some((incarnation, view)) = table.and_then(|table| table.acting(now)) else {
            return Ok(());
        };
        self.calm.acts(host.id, incarnation, self.now_ns);
        if view.is_none() || self.forgotten || host.believes_as(incarnation, self.now_ns) {
            return Ok(());
        }
        self.tokens.acts(host.id, view, incarnation, &self.host_views)?;
        self.host_views.acts(host.id, view, incarnation)?;
        if view.generation > self.hosts[at].acted {
            self.hosts[at].acted = view.generation;
            if let Some((away, after_ns)) = self.dooms.take() {
                self.network.push(self.now_ns + after_ns, Next::AllButOneCrash(away));
            }
        }
        Ok(())
    }

    /// The loop asks for the generation of views that it needs on disk.
    fn ask_disk(&mut self, at: usize) {
        let Some(agent) = self.hosts[at].agent.as_ref().filter(|agent| !agent.is_frozen()) else { return };
        let generation = agent.detector.generation_to_keep();
        self.note_generation(at, generation);
    }

    fn note_generation(&mut self, at: usize, generation: u32) {
        let (now_ns, disk_ns, random) = (self.now_ns, self.plan.disk_ns, &mut self.disks);
        let draw = || {
            let takes_ns = random.random_range(2..disk_ns);
            (random.random_range(1..takes_ns), takes_ns)
        };
        if let Some(due_ns) = self.hosts[at].numbers.ask(generation, now_ns, draw) {
            self.network.push(due_ns, Next::Disk(at));
        }
    }

    /// The control thread of a running agent continues its write.
    pub(super) fn disk(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        let is_done = host.numbers.go_on();
        if let Some(due_ns) = host.numbers.due_ns() {
            return self.network.push(due_ns.max(self.now_ns), Next::Disk(at));
        }
        if is_done {
            self.stats.generations_kept += 1;
            let (id, kept, asked) = (host.id, host.numbers.kept(), host.numbers.asked());
            self.note(|_| format!("the disk of h{id} holds generation {kept}"));
            self.note_generation(at, asked);
            self.call_loop(at);
        }
    }

    fn plan_agent(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        let turn_ns = host.deadline_ns().max(self.now_ns + SOON_NS).max(host.paused_until_ns);
        if turn_ns != host.turn_ns {
            host.turn_ns = turn_ns;
            self.network.push(turn_ns, Next::Agent(at));
        }
    }

    /// Wakes the programs of a host that have something to do.
    fn wake(&mut self, at: usize, local_ns: u64) {
        let host = &self.hosts[at];
        if host.seat.as_ref().is_some_and(|seat| seat.client.is_called(local_ns)) {
            self.wake_seat(at);
        }
        let host = &mut self.hosts[at];
        if let Some(service) = host.service.as_mut().filter(|service| service.client.is_called(local_ns)) {
            let turn_ns = (self.now_ns + self.network.random.random_range(1..WAKE_NS)).max(service.paused_until_ns);
            if service.turn_ns > turn_ns {
                service.turn_ns = turn_ns;
                self.network.push(turn_ns, Next::Service(at));
            }
        }
    }

    /// A program of the host has made a request.
    pub(super) fn call_agent(&mut self, at: usize) {
        if self.hosts[at].agent.as_ref().is_some_and(|agent| agent.is_called() && !agent.is_frozen()) {
            self.call_loop(at);
        }
    }

    /// The control thread has something for the loop.
    fn call_loop(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        let turn_ns = (self.now_ns + self.network.random.random_range(SOON_NS..SERVE_NS)).max(host.paused_until_ns);
        if host.turn_ns > turn_ns {
            host.turn_ns = turn_ns;
            self.network.push(turn_ns, Next::Agent(at));
        }
    }

    /// False if a witness crashes while it stores its vote.
    fn transmit(&mut self, at: usize, now: &Clocks) -> bool {
        let host = &mut self.hosts[at];
        let network = &mut self.network;
        if host.is_witness(self.plan) && !host.store_vote(|| !network.calm && network.chance(20)) {
            return false;
        }
        let (id, now_ns) = (host.id, self.now_ns);
        let others = HostSet::first(usize::from(self.plan.hosts)).minus(HostSet::from_iter([id]));
        let voice = Voice::Agent { forgets: host.forgets() };
        let Some(agent) = &mut host.agent else { return true };
        let buffer = &mut self.heartbeat;
        let mut sent_any = false;
        while let Some(sent) = agent.poll_transmit(now, buffer) {
            sent_any = true;
            for plane in 0..2 {
                fide_wire::set_plane(&mut buffer[..], plane);
                for to in others.iter() {
                    if may_send(&mut host.dies_after) {
                        self.network.send(now_ns, id, to, plane, voice, &buffer[..sent.len]);
                    }
                }
                if self.records {
                    let is_full = self.recorded.len() == RECORDED_MAX;
                    let oldest = if is_full { self.recorded.pop_front() } else { None };
                    let mut bytes = oldest.map_or_else(Vec::new, |(.., bytes)| bytes);
                    bytes.clear();
                    bytes.extend_from_slice(&buffer[..sent.len]);
                    self.recorded.push_back((id, plane, bytes));
                }
            }
        }
        if sent_any {
            self.has_sent(at);
        }
        let Some(agent) = &mut self.hosts[at].agent else { return true };
        if sent_any && !self.armed.is_empty() && agent.detector.vote().accepted.is_some() {
            for (host, after_ns) in std::mem::take(&mut self.armed) {
                self.network.push(now_ns + after_ns, Next::CutOff(host));
            }
        }
        true
    }

    /// Sends recorded heartbeats of other hosts to this one again.
    pub(super) fn replay(&mut self, at: usize, until_ns: u64) {
        if self.now_ns >= until_ns || self.recorded.is_empty() {
            return;
        }
        let id = self.hosts[at].id;
        for _ in 0..4 {
            let which = self.network.random.random_range(0..self.recorded.len());
            let (from, plane, bytes) = &self.recorded[which];
            if *from != id {
                self.network.replay(self.now_ns + SOON_NS, id, *plane, bytes);
            }
        }
        self.network.push(self.now_ns + MS, Next::Replay(at, until_ns));
    }
}
