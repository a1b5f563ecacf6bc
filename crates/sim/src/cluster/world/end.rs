// SPDX-License-Identifier: Apache-2.0
//! What has to be at the end, once all is well.

use fide_agreement::Standing;
use fide_detector::Policy;

use super::{
    super::{
        check::{Violation, violated},
        host::Host,
        protocol::Protocol,
        seat::Seat,
    },
    Stats, World,
};

impl<P: Protocol> World<'_, P> {
    /// Under policy `network` each host judges alone, and only who was up. A member that died before it was so here is not judged
    /// here; where all who could tell of it are gone too, nobody knows better than to wait.
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
        self.plan.policy == Policy::Network && !others.is_empty() && others.iter().all(|id| !runs(id) && unknown(id))
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
        self.stats.acting_at_the_end = acting.len() as u64;
        self.stats.bereft = bereft.into();
        self.stats.views = self.views.agreed() - 1;
        self.stats.simulated_ns = self.now_ns;
        Ok(self.stats)
    }
}
