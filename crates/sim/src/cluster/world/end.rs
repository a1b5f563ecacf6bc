// SPDX-License-Identifier: Apache-2.0
//! What has to be at the end, once all is well.

use fide_agreement::Standing;
use fide_detector::{PeerState, Policy};

use super::{
    super::{
        check::{Violation, violated},
        host::Host,
        protocol::Protocol,
        seat::Seat,
    },
    Stats, World,
};

/// What a group needs and has not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    Nothing,
    /// Hosts that vote, or all but one under policy `network`.
    HostsAway,
    /// Nobody began: a process ended when it had stored that there is a group.
    Recorded,
    /// All members of the newest view were shut out, or died, and a process of theirs has died.
    Processes,
    /// None of the newest view has been a member: whoever had the state was taken out, and is gone.
    States,
}

impl<P: Protocol> World<'_, P> {
    /// Under policy `network` each host judges alone, and only who knows it. A member that died before it knew the present incarnation
    /// of this host is not judged here, and its death is told only once its host is back: nobody knows better than to wait.
    fn waits_for_the_unknown(&self, seat: &Seat<P>) -> bool {
        let group = &seat.core.group;
        let incarnation = |id: u16| group.view().and_then(|view| view.incarnation(id));
        let runs = |id: u16| {
            let other = self.hosts.iter().find(|other| other.id == id).and_then(|other| other.seat.as_ref());
            other.is_some_and(|other| Some(other.sender.incarnation) == incarnation(id))
        };
        let unknown = |id: u16| {
            let process = incarnation(id).and_then(|incarnation| self.processes.get(&(id, incarnation)));
            process.is_none_or(|process| !self.deaths.has_met(seat.pid, (id, *process)))
        };
        let others = group.others();
        // It was up when this host was another incarnation, and never knew this one.
        let unjudged = |id: u16| {
            let agent = self.hosts[usize::from(seat.sender.host) - 1].agent.as_ref();
            let peer = agent.and_then(|agent| agent.detector.peer(id)).filter(|peer| peer.state == PeerState::Up);
            let other = &self.hosts[usize::from(id) - 1];
            peer.is_some_and(|peer| other.agent.is_none() || other.incarnation != peer.incarnation)
        };
        self.plan.policy == Policy::Network && others.iter().any(|id| !runs(id) && (unknown(id) || unjudged(id)))
    }

    /// Why nobody acts, as `docs/promises.md` has it: *Which faults lose what*.
    fn loss(&self) -> Loss {
        let seats = || self.hosts.iter().filter(|host| !host.leaves).filter_map(|host| host.seat.as_ref());
        let up = self.hosts.iter().filter(|host| host.agent.is_some() && !host.leaves).count();
        // Under policy `network` a host that starts acts once it has heard one other.
        let needed = if self.plan.policy == Policy::Network { 2 } else { self.hosts.len() };
        if up < needed {
            return Loss::HostsAway;
        }
        let own = seats().filter_map(|seat| seat.core.group.view());
        let Some(view) = own.chain(self.views.newest()).max_by_key(|view| view.number()) else {
            let is_recorded = |host: &Host<P>| host.record.read().is_some_and(|(_, is_founded)| is_founded);
            let all_there = self.members().all(|host| host.seat.is_some());
            return match (self.members().any(is_recorded), all_there) {
                (true, _) => Loss::Recorded,
                (_, false) => Loss::HostsAway,
                _ => Loss::Nothing,
            };
        };
        let runs = |id: u16| {
            let incarnation = view.incarnation(id).expect("a member");
            seats().any(|seat| seat.sender.host == id && seat.was(incarnation))
        };
        // A member that was never shut out goes on when others die. Under `majority` half of the agents' view may have died with them: then
        // the others wait.
        let alone_judges = self.plan.policy == Policy::Network;
        let is_in = |seat: &Seat<P>| {
            let is_newest = seat.core.group.view().is_some_and(|own| own.number() == view.number());
            alone_judges && seat.standing() == Standing::Member && is_newest
        };
        // One whose last members were taken out before another had the state is lost.
        let held = view.hosts().iter().any(|id| seats().any(|seat| seat.sender.host == id && seat.held));
        if seats().any(is_in) || held && view.hosts().iter().all(runs) {
            return Loss::Nothing;
        }
        if held { Loss::Processes } else { Loss::States }
    }

    pub(super) fn end(&mut self) -> Result<Stats, Violation> {
        let runs = |host: &&Host<P>| host.is_up && !host.leaves;
        let seat = |host: &&Host<P>| {
            host.standing() == Some(Standing::Member) && {
                let now = host.clock.read(self.now_ns);
                host.seat.as_ref().is_some_and(|seat| seat.lease(&now).holds())
            }
        };
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
        self.stats.acting_at_the_end = acting;
        self.stats.bereft = bereft.into();
        self.stats.views = self.views.agreed() - 1;
        self.stats.simulated_ns = self.now_ns;
        Ok(self.stats)
    }
}
