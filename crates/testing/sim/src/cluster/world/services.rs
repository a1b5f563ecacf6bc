// SPDX-License-Identifier: Apache-2.0
//! The service that runs once: its master, and its standby.

use rand::RngExt;

use super::{
    super::{
        check::Checked,
        plan::MS,
        protocol::Protocol,
        service::{Role, Service},
    },
    Next, SOON_NS, World,
};

/// Mean time between two acts.
const ACTS_NS: u64 = MS / 2;

impl<P: Protocol> World<'_, P> {
    pub(super) fn service_turn(&mut self, at: usize) -> Checked {
        let host = &mut self.hosts[at];
        let now = host.clock.read(self.now_ns);
        let is_astray = host.is_astray();
        let Some(service) = &mut host.service else { return Ok(()) };
        if service.paused_until_ns > self.now_ns {
            service.turn_ns = service.paused_until_ns;
            self.network.push(service.turn_ns, Next::Service(at));
            return Ok(());
        }
        let failed = service.turn(self.now_ns, &now, host.agent.as_mut());
        let due_ns = host.clock.true_ns(service.due_ns(&now)).max(self.now_ns + SOON_NS);
        service.turn_ns = due_ns;
        let over = service.is_over();
        let (id, pid, events) = (host.id, service.pid, std::mem::take(&mut service.events));
        self.network.push(due_ns, Next::Service(at));
        for event in &events {
            self.note(|_| format!("the service of h{id} is notified: {event:?}"));
            self.deaths.notified(pid, event, is_astray)?;
        }
        self.call_agent(at);
        if over {
            self.end_service(at);
        }
        if failed {
            self.end_service(at);
            self.promote(at);
        }
        Ok(())
    }

    fn end_service(&mut self, at: usize) {
        if let Some(service) = self.hosts[at].service.take() {
            service.client.end();
            if let Some(agent) = &mut self.hosts[at].agent {
                agent.ended(service.pid);
            }
        }
    }

    fn promote(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        let epoch = self.masters.promoted(host.id, self.now_ns);
        self.pids += 1;
        host.service = Some(Service::master(self.pids, epoch, self.now_ns));
        let id = host.id;
        self.stats.promotions += 1;
        self.note(|_| format!("h{id} is master {epoch}"));
        self.network.push(self.now_ns, Next::Service(at));
    }

    /// Masters act. If the newest master has no standby, one begins.
    pub(super) fn act(&mut self) -> Checked {
        if self.network.calm {
            return Ok(());
        }
        let next_ns = self.network.random.random_range(0..2 * ACTS_NS);
        self.network.push(self.now_ns + next_ns, Next::Act);
        let Some((master, newest)) = self.masters.newest() else {
            // On a host whose agent runs.
            let at = self.hosts.iter().position(|host| host.agent.is_some());
            at.into_iter().for_each(|at| self.promote(at));
            return Ok(());
        };
        for host in self.hosts.iter() {
            let Some(service) = host.service.as_ref().filter(|service| service.acts()) else { continue };
            // The service is suspended with its host.
            if self.forgotten || host.suspended_until_ns > self.now_ns || host.believes(self.now_ns) {
                continue;
            }
            let Role::Master { epoch, .. } = service.role else { continue };
            self.stats.acts += 1;
            self.masters.acts(host.id, epoch, service.looked_ns)?;
        }
        let runs = |service: &Service| matches!(service.role, Role::Master { epoch, .. } if epoch == newest);
        let Some(service) = self.hosts[master].service.as_ref().filter(|service| runs(service)) else {
            // The master ended with its host, before there was a standby or together with it: operators start
            // it again.
            let stands_by = |service: &Service| matches!(service.role, Role::Standby { of, .. } if of == master);
            if !self.hosts.iter().any(|host| host.service.as_ref().is_some_and(stands_by)) {
                let at = self.hosts.iter().position(|host| host.agent.is_some());
                at.into_iter().for_each(|at| {
                    self.end_service(at);
                    self.promote(at);
                });
            }
            return Ok(());
        };
        // Only once the master is known to run.
        let Some((_, process)) = service.client.process() else { return Ok(()) };
        let stands_by = |service: &Service| matches!(service.role, Role::Standby { of, .. } if of == master);
        if self.hosts.iter().any(|host| host.service.as_ref().is_some_and(stands_by)) {
            return Ok(());
        }
        let is_free = |service: &Option<Service>| {
            service.as_ref().is_none_or(|service| matches!(service.role, Role::Standby { .. }))
        };
        let free = self.hosts.iter().position(|host| host.is_up && host.id != master && is_free(&host.service));
        if let Some(at) = free {
            self.end_service(at);
            self.pids += 1;
            self.hosts[at].service = Some(Service::standby(self.pids, (master, process), self.now_ns));
            self.network.push(self.now_ns, Next::Service(at));
        }
        Ok(())
    }
}
