// SPDX-License-Identifier: Apache-2.0
//! Faults of a plan, as they happen.

use fide_agreement::{Group, HostSet, Lease, Refused, Standing};
use fide_types::HostId;

use rand::RngExt;

use super::{
    super::{
        check::Checked,
        clock::Stands,
        host::Host,
        machines::place_of,
        plan::{MS, What},
        protocol::Protocol,
        store::Store,
    },
    Next, World,
};

/// Heartbeats that a host still sends after it was asked to leave.
const GOODBYES: u32 = 30;
/// A leaving host ends at the latest after this.
const GOODBYES_NS: u64 = 10 * MS;
/// Restored hosts start within this.
const RESTORED_NS: u64 = 5 * MS;

impl<P: Protocol> World<'_, P> {
    pub(super) fn crash(&mut self, at: usize) {
        if self.hosts[at].is_up {
            self.stats.crashes += 1;
            self.hosts[at].crash(self.now_ns, &mut self.disks);
            let id = self.hosts[at].id;
            self.note(|_| format!("h{id} crashes"));
            if self.network.calm {
                self.restore(at);
            }
        }
    }

    /// All hosts lose power, and start again one by one.
    pub(super) fn power_cut(&mut self, down_ns: u64) {
        self.stats.power_cuts += 1;
        for at in 0..self.hosts.places() {
            self.crash(at);
            let after_ns = self.network.random.random_range(0..down_ns);
            self.network.push(self.now_ns + after_ns, Next::Start(at));
        }
    }

    /// The links are mended, and the hosts crash again or stay, by later faults of the plan.
    pub(super) fn all_but_one_crash(&mut self, away: u16) {
        if self.network.calm {
            return;
        }
        for plane in 0..2 {
            self.network.cut_off(away, plane);
        }
        for at in (0..self.hosts.places()).filter(|at| *at != place_of(away)) {
            self.crash(at);
            let after_ns = self.network.random.random_range(0..MS);
            self.network.push(self.now_ns + after_ns, Next::Start(at));
        }
    }

    /// A host that has said goodbye ends as soon as it runs.
    pub(super) fn gone(&mut self, at: usize, starts: u64) {
        let host = &self.hosts[at];
        if !host.leaves || host.starts != starts {
            return;
        }
        if host.suspended_until_ns > self.now_ns {
            return self.network.push(host.suspended_until_ns, Next::Gone(at, starts));
        }
        self.crash(at);
    }

    /// Once faults are over: a host that is down comes back, if the plan restores hosts.
    fn restore(&mut self, at: usize) {
        if self.plan.restores && at < self.hosts.place_of_clone() {
            let after_ns = self.network.random.random_range(0..RESTORED_NS);
            self.network.push(self.now_ns + after_ns, Next::Start(at));
        }
    }

    fn host(&mut self, host: HostId) -> &mut Host<P> {
        &mut self.hosts[host]
    }

    /// Pauses agent, member and service.
    fn pause(&mut self, host: HostId, until_ns: u64) {
        let host = self.host(host);
        if !host.is_up {
            return;
        }
        host.paused_until_ns = host.paused_until_ns.max(until_ns);
        host.suspended_until_ns = host.suspended_until_ns.max(until_ns);
        if let Some(seat) = &mut host.seat {
            seat.paused_until_ns = seat.paused_until_ns.max(until_ns);
        }
        if let Some(service) = &mut host.service {
            service.paused_until_ns = service.paused_until_ns.max(until_ns);
        }
    }

    pub(super) fn fault(&mut self, what: What) -> Checked {
        self.note(|_| format!("{what:?}"));
        let now_ns = self.now_ns;
        if host_inside(what).is_some_and(|host| self.host(host).stopped_until_ns > now_ns) {
            return Ok(());
        }
        match what {
            What::Crash { host } => self.crash(place_of(host)),
            What::CrashSending { host, copies } => {
                let host = self.host(host);
                host.dies_after = host.is_up.then_some(copies);
            }
            What::Start { host } => {
                if !self.host(host).is_up {
                    self.start(place_of(host));
                }
            }
            What::Pause { host, for_ns } => self.pause(host, now_ns + for_ns),
            What::Leave { host } => self.leave(host),
            What::Remove { host } => self.remove(host),
            What::HandOver { host } => self.hand_over(host),
            What::Cut { from, to, plane } => self.network.cut(from, to, plane),
            What::Isolate { host, plane } => self.network.cut_off(host, plane),
            What::Split { side } => self.split(side),
            What::Divide { among } => self.divide(HostSet(among)),
            What::Heal => self.heal(),
            What::Timeouts { host, timeout_ns } => self.set_timeouts(host, timeout_ns),
            What::CutAtChange { host, after_ns } => self.armed.push((host, after_ns)),
            What::CrashAtFounding { away, after_ns } => self.dooms = Some((away, after_ns)),
            What::PauseAgent { host, for_ns } => {
                let host = self.host(host);
                host.paused_until_ns = host.paused_until_ns.max(now_ns + for_ns);
            }
            What::PauseSeat { host, for_ns } => {
                if let Some(seat) = &mut self.host(host).seat {
                    seat.paused_until_ns = seat.paused_until_ns.max(now_ns + for_ns);
                }
            }
            What::PauseService { host, for_ns } => {
                if let Some(service) = &mut self.host(host).service {
                    service.paused_until_ns = service.paused_until_ns.max(now_ns + for_ns);
                }
            }
            What::KillAgent { host, down_ns } => self.kill_agent(host, down_ns),
            What::TakeOver { host, for_ns } => self.freeze_agent(host, for_ns),
            What::KillSeat { host } => self.kill_seat(place_of(host)),
            What::KillSeats => {
                let runs = |at: &usize| self.hosts[*at].stopped_until_ns <= now_ns;
                let all: Vec<usize> = (0..self.hosts.places()).filter(runs).collect();
                all.into_iter().for_each(|at| self.kill_seat(at));
            }
            What::PowerCut { down_ns } => self.power_cut(down_ns),
            What::PowerCutAtRecord { down_ns } => self.cuts_at_record = Some(down_ns),
            What::SwapDisk { host } => self.swap_disk(host)?,
            What::FillDisk { host, for_ns } => {
                let host = self.host(host);
                host.full_until_ns = host.full_until_ns.max(now_ns + for_ns);
            }
            What::Slew { host, ppm } => self.host(host).clock.slew(now_ns, ppm),
            What::Suspend { host, for_ns } => self.suspend(host, for_ns),
            What::Stop { host, for_ns, stands } => self.stop(host, for_ns, stands),
            What::Snapshot { host } => self.snapshot(host),
            What::PutBack { host } => self.put_back(host),
            What::Clone { host, reaches } => self.clone_of(host, reaches),
            What::EndClone => self.end_clone(),
            What::Flood { host, times } => self.flood(host, times),
            What::Replay { host, for_ns } => {
                self.network.push(now_ns, Next::Replay(place_of(host), now_ns + for_ns));
            }
        }
        Ok(())
    }

    fn kill_seat(&mut self, at: usize) {
        if self.hosts[at].standing().is_some_and(|standing| standing != Standing::Left) {
            self.end_seat(at);
        }
    }

    /// Only one host has two disks, and only where all others have a record: hosts without one found another group.
    fn swap_disk(&mut self, host: HostId) -> Checked {
        let is_founded =
            |host: &Host<P>| host.aside.is_none() && host.record.read().is_some_and(|record| record.is_founded);
        let all_founded = self.members().count() > 1 && self.members().all(is_founded);
        if self.hosts[host].is_witness(self.plan) || !(all_founded || self.hosts[host].aside.is_some()) {
            return Ok(());
        }
        self.stats.swaps += 1;
        self.kill_seat(place_of(host));
        if self.hosts[host].seat.is_some() { Ok(()) } else { self.host(host).swap_disk() }
    }

    /// The host's agent and member say goodbye for [`GOODBYES_NS`], then the host ends. A witness says no
    /// goodbye, because it comes back as the same incarnation.
    fn leave(&mut self, host: HostId) {
        if self.hosts[host].is_witness(self.plan) {
            return self.crash(place_of(host));
        }
        let now_ns = self.now_ns;
        let host = self.host(host);
        let local_ns = host.clock.local_ns(now_ns);
        let Some(agent) = &mut host.agent else { return };
        agent.detector.leave(local_ns);
        host.leaves = true;
        if let Some(seat) = &mut host.seat {
            seat.core.group.leave();
        }
        host.restart_ns = None;
        host.dies_after = Some(GOODBYES);
        let (at, starts) = (place_of(host.id), host.starts);
        self.network.push(now_ns + GOODBYES_NS, Next::Gone(at, starts));
    }

    /// Asks the leader of the group, if one runs, to remove the member of a host.
    fn remove(&mut self, subject: u16) {
        // The group refuses if the host is no member.
        self.ask_leader(|group, lease| group.remove(lease, subject));
    }

    /// Asks the leader of the group, if one runs, to hand over to the member of a host.
    fn hand_over(&mut self, successor: u16) {
        self.stats.handed_over += u64::from(self.ask_leader(|group, lease| group.hand_over(lease, successor)));
    }

    /// Whether a leader does what it is asked.
    fn ask_leader(&mut self, ask: impl FnOnce(&mut Group<P>, Lease) -> Result<(), Refused>) -> bool {
        let now_ns = self.now_ns;
        let leads = |host: &&mut Host<P>| host.leads(now_ns) && host.stopped_until_ns <= now_ns;
        let Some(host) = self.hosts.iter_mut().find(leads) else { return false };
        let now = host.clock.read(now_ns);
        let Some(seat) = host.seat.as_mut() else { return false };
        let lease = seat.lease(&now);
        ask(&mut seat.core.group, lease).is_ok()
    }

    /// Cuts all links between the hosts of `side` (bit `id - 1`) and the others, in both planes.
    fn split(&mut self, side: u64) {
        let on = |host: HostId| side >> (host - 1) & 1 == 1;
        for from in 1..=self.plan.hosts {
            for to in (1..=self.plan.hosts).filter(|to| on(*to) != on(from)) {
                self.network.cut(from, to, 0);
                self.network.cut(from, to, 1);
            }
        }
    }

    /// Cuts all links among some hosts, in both planes.
    fn divide(&mut self, among: HostSet) {
        for from in among.iter() {
            for to in among.iter().filter(|to| *to != from) {
                self.network.cut(from, to, 0);
                self.network.cut(from, to, 1);
            }
        }
    }

    /// Mends all links, and cancels faults that wait for a change of view.
    fn heal(&mut self) {
        self.network.mend();
        self.armed.clear();
        self.dooms = None;
    }

    fn set_timeouts(&mut self, host: HostId, timeout_ns: u64) {
        let (hosts, now_ns) = (self.plan.hosts, self.now_ns);
        let host = self.host(host);
        let now = host.clock.read(now_ns);
        let Some(agent) = &mut host.agent else { return };
        (1..=hosts).for_each(|peer| agent.set_timeout(now.raw_ns, peer, timeout_ns));
    }

    fn kill_agent(&mut self, host: HostId, down_ns: u64) {
        let at = place_of(host);
        if self.hosts[at].agent.is_some() && self.hosts[at].dies_after.is_none() {
            self.stats.agents_killed += 1;
            self.hosts[at].end_agent(self.now_ns);
            self.network.push(self.now_ns + down_ns, Next::StartAgent(at));
            self.wake_seat(at);
        }
    }

    /// The agent hands over to a new one, and is frozen for so long. The agent of a witness does not.
    fn freeze_agent(&mut self, host: HostId, for_ns: u64) {
        let is_witness = self.hosts[host].is_witness(self.plan);
        let now_ns = self.now_ns;
        let host = self.host(host);
        let local_ns = host.clock.local_ns(now_ns);
        if let Some(agent) = host.agent.as_mut().filter(|agent| !agent.is_frozen() && !is_witness) {
            agent.freeze(local_ns, local_ns + for_ns);
        }
    }

    fn suspend(&mut self, id: HostId, for_ns: u64) {
        let now_ns = self.now_ns;
        let host = self.host(id);
        if host.is_up && host.suspended_until_ns <= now_ns {
            host.clock.stand(now_ns, for_ns, Stands::Suspended);
            self.pause(id, now_ns + for_ns);
        }
    }

    /// A hypervisor stops the host, and the clocks that `stands` names.
    fn stop(&mut self, id: HostId, for_ns: u64, stands: Option<Stands>) {
        let (plan, now_ns) = (self.plan, self.now_ns);
        let host = self.host(id);
        if !host.is_up || host.suspended_until_ns > now_ns {
            return;
        }
        if stands == Some(Stands::Unseen) {
            host.begin_to_believe(plan, now_ns);
        }
        if let Some(stands) = stands {
            host.clock.stand(now_ns, for_ns, stands);
        }
        host.stopped_until_ns = now_ns + for_ns;
        self.stats.stops += 1;
        self.pause(id, now_ns + for_ns);
    }

    /// The agent sends its programs many events at once.
    fn flood(&mut self, host: HostId, times: u32) {
        let others = self.plan.hosts;
        let at = place_of(host);
        let Some(agent) = self.hosts[at].agent.as_ref().filter(|agent| !agent.is_frozen()) else { return };
        agent.flood(1 + host % others, times);
        self.wake_seat(at);
    }

    pub(super) fn quiet(&mut self) -> Checked {
        self.note(|_| "all is well from here on".to_owned());
        self.network.calm = true;
        self.network.mend();
        self.armed.clear();
        (self.dooms, self.cuts_at_record) = (None, None);
        let now_ns = self.now_ns;
        self.end_clone();
        self.restart_those_put_back();
        self.calm.begins(now_ns);
        for at in 0..self.hosts.originals().len() {
            // The disk with the later view is the one that others may wait for.
            let host = &self.hosts[at];
            let is_later = |(_, other): &(_, Store)| other.view_number() > host.store.view_number();
            if host.standing() != Some(Standing::Member) && host.aside.as_ref().is_some_and(is_later) {
                self.kill_seat(at);
                if self.hosts[at].seat.is_none() {
                    self.hosts[at].swap_disk()?;
                }
            }
            self.hosts[at].full_until_ns = 0;
            if !self.hosts[at].is_up {
                self.restore(at);
                continue;
            }
            let host = &mut self.hosts[at];
            // A host that has said goodbye still goes; other planned crashes are cancelled.
            host.dies_after = host.dies_after.filter(|_| host.leaves);
            host.clock.slew(now_ns, 0);
            // A suspended host comes back by itself.
            let least_ns = host.suspended_until_ns.min(host.paused_until_ns).max(now_ns);
            let wakes_ns = if host.clock.stands(now_ns) { least_ns } else { now_ns };
            self.calm.but_from(host.suspended_until_ns.max(wakes_ns));
            host.stopped_until_ns = host.stopped_until_ns.min(wakes_ns);
            if host.paused_until_ns > now_ns {
                host.paused_until_ns = wakes_ns;
                host.turn_ns = wakes_ns;
                self.network.push(wakes_ns, Next::Agent(at));
            }
            if let Some(seat) = host.seat.as_mut().filter(|seat| seat.paused_until_ns > now_ns) {
                (seat.paused_until_ns, seat.turn_ns) = (wakes_ns, wakes_ns);
                self.network.push(wakes_ns, Next::Seat(at));
            }
        }
        Ok(())
    }
}

/// The host inside of which a fault happens, if any. Inside a stopped machine nothing happens.
fn host_inside(what: What) -> Option<u16> {
    match what {
        What::Pause { host, .. }
        | What::Leave { host }
        | What::Timeouts { host, .. }
        | What::PauseAgent { host, .. }
        | What::PauseSeat { host, .. }
        | What::PauseService { host, .. }
        | What::KillAgent { host, .. }
        | What::TakeOver { host, .. }
        | What::KillSeat { host }
        | What::SwapDisk { host }
        | What::Slew { host, .. }
        | What::Suspend { host, .. }
        | What::Flood { host, .. }
        | What::Stop { host, .. } => Some(host),
        _ => None,
    }
}
