// SPDX-License-Identifier: Apache-2.0
//! Virtual machines that are put back to a snapshot, and snapshots that run beside their originals.

use fide_types::HostId;
use rand::RngExt;

use super::{
    super::{
        check::{Beliefs, Checked},
        host::{Host, Packet, Voice},
        machines::place_of,
        plan::{MS, Reaches},
        protocol::Protocol,
        seat::Seat,
        session::Copies,
    },
    Next, World,
};

/// Operators end and restart a machine within this after its agent has found out that it was put back or
/// cloned.
const PEOPLE_NS: u64 = 60 * MS;

/// A machine at the time of its snapshot.
pub(super) struct Snapshot<P: Protocol> {
    host: Host<P>,
    at_ns: u64,
    /// What its agent and its programs had been notified of.
    beliefs: Beliefs,
}

/// A snapshot that runs beside its original.
#[derive(Debug, Clone, Copy)]
pub(super) struct Twin {
    id: HostId,
    reaches: Reaches,
    /// The place of the machine, original or clone, that has sent last.
    sent_last: usize,
}

/// How much later wall clocks are when a machine is put back, s: more than the incarnations that it takes
/// meanwhile.
const LATER_S: u64 = 1000;

impl<P: Protocol> World<'_, P> {
    /// The place of the clone that runs.
    pub(super) fn twin_at(&self) -> Option<usize> {
        self.twin.map(|_| self.hosts.place_of_clone())
    }

    /// The machine has a clone that runs and was not found out.
    pub(super) fn is_twice(&self, at: usize) -> bool {
        let runs = |twin: usize| self.hosts[twin].is_up && !self.hosts[twin].is_found_out();
        self.twin.is_some_and(|twin| twin.id == self.hosts[at].id) && self.twin_at().is_some_and(runs)
    }

    pub(super) fn snapshot(&mut self, id: HostId) {
        let at = place_of(id);
        let host = &self.hosts[at];
        if !host.is_up || host.leaves || host.dies_after.is_some() {
            return;
        }
        let mut copies = Copies::new(self.pids);
        let copy = host.copy(&mut copies);
        self.pids = copies.last_pid;
        for (from, to) in copies.pids {
            self.deaths.copy(from, to);
        }
        let beliefs = self.verdicts.of(at);
        self.snapshots.retain(|snapshot| snapshot.host.id != id);
        self.snapshots.push(Snapshot { host: copy, at_ns: self.now_ns, beliefs });
        self.note(|_| format!("a snapshot of h{id} is taken"));
    }

    /// Takes the snapshot of a machine, to run from now on.
    fn go_on(&mut self, id: HostId) -> Option<(Host<P>, Beliefs)> {
        let at = self.snapshots.iter().position(|snapshot| snapshot.host.id == id)?;
        let Snapshot { mut host, at_ns, beliefs } = self.snapshots.swap_remove(at);
        host.go_on(self.plan, at_ns, self.now_ns);
        host.wall_least_s = self.later_s();
        // The machine may have founded the group after the snapshot, and does not know. If it is alone in its
        // group, or all others are dead, it asks no other member.
        let is_alone = |seat: &Seat<P>| {
            let group = &seat.core.group;
            group.view().is_none_or(|view| view.members().len() == 1) || group.others().is_empty()
        };
        let seats = [host.seat.as_ref(), self.hosts[id].seat.as_ref()];
        if seats.into_iter().flatten().any(is_alone) {
            self.tear();
        }
        Some((host, beliefs))
    }

    /// A correct wall clock: later than any incarnation here. The disk of a machine that was put back has
    /// lost the incarnations that were stored since the snapshot, and the disk of an original does not know
    /// those of its clone (docs/internals/clocks.md).
    fn later_s(&mut self) -> u64 {
        let latest = self.hosts.iter().map(|host| u64::from(host.incarnation)).max().unwrap_or(0);
        self.latest_s = self.latest_s.max(latest) + LATER_S;
        self.latest_s
    }

    fn starts_by_a_right_clock(&mut self, at: usize) {
        self.hosts[at].wall_least_s = self.later_s();
        self.network.push(self.now_ns, Next::Start(at));
    }

    /// Plans the turns of all that runs on the machine.
    fn begin_turns(&mut self, at: usize) {
        let host = &self.hosts[at];
        self.network.push(host.turn_ns, Next::Agent(at));
        if let Some(due_ns) = host.numbers.due_ns() {
            self.network.push(due_ns, Next::Disk(at));
        }
        match &host.seat {
            Some(seat) => self.network.push(seat.turn_ns, Next::Seat(at)),
            None => self.network.push(self.now_ns, Next::StartSeat(at)),
        }
        if let Some(service) = &host.service {
            self.network.push(service.turn_ns, Next::Service(at));
        }
        if host.agent.is_none() {
            self.network.push(self.now_ns, Next::StartAgent(at));
        }
        if host.is_found_out() {
            self.found_out(at);
        }
    }

    /// Puts a machine back to its snapshot; the machine that ran is gone.
    pub(super) fn put_back(&mut self, id: HostId) {
        if self.twin.is_some_and(|twin| twin.id == id) {
            return;
        }
        let Some((host, beliefs)) = self.go_on(id) else { return };
        let at = place_of(id);
        self.hosts[at] = host;
        self.machines += 1;
        self.hosts[at].machine = self.machines;
        self.verdicts.put_back(at, beliefs);
        self.stats.put_back += 1;
        self.note(|_| format!("h{id} is put back"));
        self.begin_turns(at);
    }

    /// Runs a snapshot beside its original.
    pub(super) fn clone_of(&mut self, id: HostId, reaches: Reaches) {
        if self.twin.is_some() || !self.hosts[id].is_up {
            return;
        }
        let Some((mut host, beliefs)) = self.go_on(id) else { return };
        let at = self.hosts.place_of_clone();
        host.service = None;
        host.go_astray(true, true);
        self.hosts[id].go_astray(true, false);
        // Of the two, the machine that begins its next incarnation last is the one to be heard at the end:
        // here the original.
        self.hosts[id].wall_least_s = self.later_s();
        self.hosts.set_clone(host);
        self.machines += 1;
        self.hosts[at].machine = self.machines;
        self.verdicts.put_back(at, beliefs);
        self.twin = Some(Twin { id, reaches, sent_last: at });
        self.stats.clones += 1;
        self.note(|_| format!("a clone of h{id} begins"));
        self.begin_turns(at);
    }

    /// The agent has found out that its machine was put back, or has a clone. It is fenced, and operators act
    /// on that. If it was the clone, the original is alone from then on.
    pub(super) fn found_out(&mut self, at: usize) {
        let people_ns = self.network.random.random_range(MS..PEOPLE_NS);
        self.network.push(self.now_ns + people_ns, Next::Renew(at, self.hosts[at].machine));
        if let Some(twin) = self.twin.filter(|_| self.twin_at() == Some(at)) {
            self.hosts[twin.id].is_alone();
        }
    }

    /// Operators have read the agent's message: the machine ends, and an original starts again.
    pub(super) fn renew(&mut self, at: usize, machine: u64) {
        let host = &self.hosts[at];
        if !host.is_up || host.machine != machine || !host.is_found_out() {
            return;
        }
        if host.suspended_until_ns > self.now_ns {
            return self.network.push(host.suspended_until_ns, Next::Renew(at, machine));
        }
        let id = host.id;
        self.hosts[at].crash(self.now_ns, &mut self.disks);
        self.note(|_| format!("the machine of h{id} is ended"));
        if at < self.hosts.place_of_clone() {
            self.starts_by_a_right_clock(at);
        }
    }

    /// Ends the clone. If neither agent has found out that there are two machines, operators have: the
    /// original ends, too, and starts again.
    pub(super) fn end_clone(&mut self) {
        let Some(twin) = self.twin.take() else { return };
        let at = self.hosts.place_of_clone();
        let is_alone = self.hosts[at].is_found_out();
        self.hosts[at].crash(self.now_ns, &mut self.disks);
        self.note(|_| format!("the clone of h{} ends", twin.id));
        let original = &mut self.hosts[twin.id];
        if original.is_up && (!is_alone || original.is_found_out()) {
            original.crash(self.now_ns, &mut self.disks);
            self.starts_by_a_right_clock(place_of(twin.id));
        }
    }

    /// A packet reaches a member that takes its sender for a member of its view, although the sender's
    /// machine has forgotten what it said after its snapshot, or runs twice.
    pub(super) fn hears_astray(&mut self, at: usize, packet: &Packet) {
        let Voice::Member { sender, .. } = packet.voice else { return };
        if self.torn || self.machines == 0 {
            return;
        }
        let speaks = |host: &Host<P>| host.id == sender.host && host.speaks_as_before(sender.incarnation);
        let takes =
            |seat: &Seat<P>| seat.core.group.view().is_none_or(|view| view.holds(sender.host, sender.incarnation));
        if self.hosts.iter().any(speaks) && self.hosts[at].seat.as_ref().is_some_and(takes) {
            self.note(|_| format!("a member hears h{} as the one that it was", sender.host));
            self.tear();
        }
    }

    /// An agent, or its receive program, accepts a heartbeat of a machine that has forgotten its promises and
    /// accepted votes: from then on the word of that host may count twice. The machine had no sign of it
    /// before: no host that it hears has heard it since the snapshot, or it has sent as much as was heard.
    pub(super) fn heard_forgetful(&mut self, at: usize, packet: &Packet) {
        if let Some(from) = packet.forgetful().filter(|_| !self.forgotten) {
            self.note(|world| format!("h{} takes a heartbeat of h{from} as the one that it was", world.hosts[at].id));
            self.forgotten = true;
            self.stats.forgotten = 1;
            self.tear();
        }
    }

    /// The hosts, or the group, continue on what one machine has forgotten.
    pub(super) fn tear(&mut self) {
        self.torn = true;
        self.stats.torn = 1;
    }

    /// Operators end and restart machines that were put back and did not find out.
    pub(super) fn restart_those_put_back(&mut self) {
        for at in 0..self.hosts.originals().len() {
            if self.hosts[at].is_up && self.hosts[at].is_astray() {
                self.hosts[at].crash(self.now_ns, &mut self.disks);
                self.starts_by_a_right_clock(at);
            }
        }
    }

    /// The original or the clone has sent something.
    pub(super) fn has_sent(&mut self, at: usize) {
        let Some(twin) = &mut self.twin else { return };
        if self.hosts[at].id == twin.id {
            twin.sent_last = at;
        }
    }

    /// Delivers a packet for a host that may have a clone: to both machines, or to the one that the switches
    /// have heard last.
    pub(super) fn arrives_twice(&mut self, to: u16, packet: Packet) -> Checked {
        let original = place_of(to);
        let (Some(Twin { id, reaches, sent_last }), Some(at)) = (self.twin, self.twin_at()) else {
            return self.arrives_at(original, packet);
        };
        if id != to {
            return self.arrives_at(original, packet);
        }
        match reaches {
            Reaches::Latest => self.arrives_at(sent_last, packet),
            Reaches::LatestUnlessAll if matches!(packet.voice, Voice::Member { .. }) => {
                self.arrives_at(sent_last, packet)
            }
            Reaches::Both | Reaches::LatestUnlessAll => {
                self.arrives_at(original, packet.clone())?;
                // The first delivery may have ended both.
                if self.twin_at() == Some(at) { self.arrives_at(at, packet) } else { Ok(()) }
            }
        }
    }
}
