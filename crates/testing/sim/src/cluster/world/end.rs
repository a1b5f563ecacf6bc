// SPDX-License-Identifier: Apache-2.0
//! What has to hold at the end, once all faults are over.

use fide_agreement::{Standing, View};
use fide_detector::{Detector, PeerState, Policy, ViewInfo};
use fide_types::HostId;

use super::{
    super::{
        check::{Checked, Violation, violated},
        host::Host,
        protocol::Protocol,
        seat::Seat,
    },
    Stats, World,
};

/// What a group needs and has lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    Nothing,
    /// Too few voters are up; under policy `network`, too few hosts.
    HostsAway,
    /// No member has begun, because a process ended after it had stored that there is a group.
    Recorded,
    /// All members of the newest view were shut out or died, and one of their processes has died.
    Processes,
    /// No host of the newest view has been a member: the members that had the state were removed, and are
    /// gone.
    States,
    /// A host has two disks, and others may wait for the one that it does not run with.
    OtherDisk,
}

impl<P: Protocol> World<'_, P> {
    /// Under policy `network` each host judges alone, and only hosts that it knows. It cannot judge a member
    /// that died before it knew this host's present incarnation: this host is notified of that death only
    /// once the dead member's host is back. Until then waiting is right.
    fn waits_for_the_unknown(&self, seat: &Seat<P>) -> bool {
        let group = &seat.core.group;
        let incarnation = |id: HostId| group.view().and_then(|view| view.incarnation(id));
        let runs = |id: HostId| {
            let other =
                self.hosts.originals().iter().find(|other| other.id == id).and_then(|other| other.seat.as_ref());
            other.is_some_and(|other| Some(other.sender.incarnation) == incarnation(id))
        };
        let unknown = |id: HostId| {
            let process = incarnation(id).and_then(|incarnation| self.processes.get(&(id, incarnation)));
            process.is_none_or(|process| !self.deaths.has_met(seat.pid, (id, *process)))
        };
        let others = group.others();
        // The other host was up while this host was another incarnation, and never knew this one.
        let unjudged = |id: HostId| {
            let agent = self.hosts[seat.sender.host].agent.as_ref();
            let peer = agent.and_then(|agent| agent.detector.peer(id)).filter(|peer| peer.state == PeerState::Up);
            let other = &self.hosts[id];
            peer.is_some_and(|peer| other.agent.is_none() || other.incarnation != peer.incarnation)
        };
        self.plan.policy == Policy::Network && others.iter().any(|id| !runs(id) && (unknown(id) || unjudged(id)))
    }

    /// Agents that run and do not leave.
    fn agents(&self) -> impl Iterator<Item = (&Host<P>, &Detector)> {
        let agents = self.hosts.originals().iter().filter(|host| !host.leaves);
        agents.filter_map(|host| Some((host, &host.agent.as_ref()?.detector)))
    }

    /// Enough hosts are up to act: a majority of some view, or as many as are needed to found one.
    fn hosts_suffice(&self) -> bool {
        let (up, all) = (self.agents().count(), self.hosts.originals().len());
        if self.plan.policy == Policy::Network {
            // A host that starts acts once it has heard one other.
            return up >= 2;
        }
        let holders = |id| self.agents().filter(|(_, detector)| detector.view().id == id).count();
        let views = || self.agents().map(|(_, detector)| detector.view()).filter(|view| !view.id.is_none());
        if views().any(|view| holders(view.id) > view.members.len() / 2) {
            return true;
        }
        // As far as the others know, hosts that are away may be alive, so the others wait for them.
        let away = |id: HostId| {
            self.hosts.originals().iter().any(|host| host.id == id && (host.agent.is_none() || host.leaves))
        };
        let missing = |view: &ViewInfo| view.members.iter().filter(|id| away(*id)).count();
        let waits = views().any(|view| holders(view.id) + missing(&view) > view.members.len() / 2);
        up >= (all / 2 + 1).max(all - 1) && !waits
    }

    /// If enough hosts are up, all of them act in one view: also witnesses, and hosts whose members have
    /// nothing left.
    fn hosts_act(&self) -> Checked {
        if !self.hosts_suffice() {
            return Ok(());
        }
        let newest = self.agents().map(|(_, detector)| detector.view().id).max();
        let acts = |(host, detector): &(&Host<P>, &Detector)| {
            host.acts_as(host.incarnation, self.now_ns) && Some(detector.view().id) == newest
        };
        let idle: Vec<_> = self.agents().filter(|agent| !acts(agent)).map(|(host, it)| (host.id, it.view())).collect();
        if idle.is_empty() {
            Ok(())
        } else {
            violated("hosts act", format!("of the newest view, {newest:?}, these are not, or are fenced: {idle:?}"))
        }
    }

    /// Why no member acts, in the terms of *Which faults lose what* in `docs/internals/promises.md`.
    /// Evaluated for each run that ends so.
    fn loss(&self) -> Loss {
        let seats = || self.hosts.originals().iter().filter(|host| !host.leaves).filter_map(|host| host.seat.as_ref());
        if !self.hosts_suffice() {
            return Loss::HostsAway;
        }
        if self.plan.durable.is_some() {
            // Nothing is lost with the processes.
            let all_there = self.members().all(|host| host.seat.is_some() && !host.leaves);
            let has_two = self.members().any(|host| host.aside.is_some());
            return match all_there {
                true if has_two => Loss::OtherDisk,
                true => Loss::Nothing,
                false => Loss::HostsAway,
            };
        }
        // The last view that a running process has begun: no process is left that could deliver a later one.
        let Some(view) = seats().filter_map(|seat| seat.core.group.view()).max_by_key(|view| view.number()) else {
            // A member that was removed but is still needed has the state.
            let is_needed = seats().any(|seat| seat.standing() == Standing::Leaving);
            return if is_needed { Loss::Nothing } else { self.loss_of_founders() };
        };
        let runs = |id: HostId| {
            let incarnation = view.incarnation(id).expect("a member");
            seats().any(|seat| seat.sender.host == id && seat.was(incarnation))
        };
        // A member that was never shut out continues when others die.
        let is_in = |seat: &Seat<P>| {
            let is_newest = seat.core.group.view().is_some_and(|own| own.number() == view.number());
            seat.standing() == Standing::Member && is_newest
        };
        let held = view.hosts().iter().any(|id| seats().any(|seat| seat.sender.host == id && seat.held));
        if seats().any(is_in) || held && view.hosts().iter().all(runs) {
            return Loss::Nothing;
        }
        if held { Loss::Processes } else { Loss::States }
    }

    /// No running process has begun: why none founds the group.
    fn loss_of_founders(&self) -> Loss {
        let is_recorded = |host: &Host<P>| host.record.read().is_some_and(|record| record.is_founded);
        // All members have to be there at once.
        let all_there = self.members().all(|host| host.seat.is_some() && !host.leaves);
        if !self.members().any(is_recorded) {
            return if all_there { Loss::Nothing } else { Loss::HostsAway };
        }
        // All processes that had begun have died. A member of their view that was never shut out continues,
        // unless some process has never heard from one of those that died: that one may have begun with
        // others.
        let is_in = |id: HostId, incarnation: u32| {
            let seat = self.hosts[id].seat.as_ref();
            seat.is_some_and(|seat| seat.sender.incarnation == incarnation)
        };
        let never_shut_out =
            |view: &View| view.hosts().iter().any(|id| view.incarnation(id).is_some_and(|of| is_in(id, of)));
        let founders: Vec<_> =
            self.members().filter(|host| !is_recorded(host)).filter_map(|host| host.seat.as_ref()).collect();
        // The first process of its host knows that nothing was ever delivered there.
        if all_there && founders.iter().any(|seat| seat.core.group.first_processes().contains(seat.sender.host)) {
            return Loss::Nothing;
        }
        // A member that is away is waited for if some founder has never heard from it.
        let is_away = |host: &&Host<P>| host.seat.is_none() || host.leaves;
        let waits =
            |seat: &&Seat<P>| self.members().filter(is_away).any(|host| !seat.core.group.has_heard_founding(host.id));
        if founders.iter().any(waits) {
            return Loss::HostsAway;
        }
        let has_heard = |seat: &&Seat<P>| {
            let others = self.began.iter().filter(|(id, ..)| *id != seat.sender.host);
            others.into_iter().all(|(id, ..)| seat.core.group.has_heard_founding(*id))
        };
        if founders.iter().all(has_heard) && self.began.iter().any(|(.., view)| never_shut_out(view)) {
            return Loss::Nothing;
        }
        Loss::Recorded
    }

    pub(super) fn end(&mut self) -> Result<Stats, Violation> {
        self.hosts_act()?;
        let runs = |host: &&Host<P>| host.is_up && !host.leaves;
        let seat = |host: &&Host<P>| {
            host.standing() == Some(Standing::Member) && {
                let now = host.clock.read(self.now_ns);
                host.seat.as_ref().is_some_and(|seat| seat.lease(&now).holds())
            }
        };
        if self.torn {
            return Ok(self.stats);
        }
        let running: Vec<&Host<P>> = self.members().filter(runs).collect();
        let acting: Vec<&Host<P>> = running.iter().copied().filter(seat).collect();
        let seats: Vec<&Seat<P>> = acting.iter().filter_map(|host| host.seat.as_ref()).collect();
        let settled: Vec<_> = seats.iter().map(|seat| (seat.sender.host, seat.voice(), seat.state.position)).collect();
        let bereft = seats.iter().any(|seat| self.waits_for_the_unknown(seat));
        if !bereft {
            self.log.settled(&settled)?;
        }
        if !bereft && !acting.is_empty() && acting.len() < running.len() {
            let out: Vec<_> =
                running.iter().filter(|host| !seat(host)).map(|host| (host.id, host.standing())).collect();
            return violated("readmission", format!("while others act, these do not: {out:?}"));
        }
        let loss = acting.is_empty().then(|| self.loss());
        if loss == Some(Loss::Nothing)
            && !running.iter().filter_map(|host| host.seat.as_ref()).any(|seat| self.waits_for_the_unknown(seat))
        {
            let standing: Vec<_> = running.iter().map(|host| (host.id, host.standing())).collect();
            return violated("somebody acts", format!("nobody does at the end: {standing:?}"));
        }
        let acting = acting.len() as u64;
        self.stats.idle_at_the_end = (acting == 0).into();
        self.stats.idle_hosts_away = (loss == Some(Loss::HostsAway)).into();
        self.stats.idle_recorded = (loss == Some(Loss::Recorded)).into();
        self.stats.idle_processes_lost = (loss == Some(Loss::Processes)).into();
        self.stats.idle_states_lost = (loss == Some(Loss::States)).into();
        self.stats.idle_other_disk = (loss == Some(Loss::OtherDisk)).into();
        self.stats.acting_at_the_end = acting;
        self.stats.bereft = bereft.into();
        self.stats.views = self.views.agreed() - 1;
        self.stats.simulated_ns = self.now_ns;
        Ok(self.stats)
    }
}
