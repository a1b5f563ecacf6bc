// SPDX-License-Identifier: Apache-2.0
//! A host as a virtual machine: a snapshot of it, which is put back, or runs beside its original.

use super::{
    super::{service::Role, session::Copies},
    Host, Plan, Protocol,
};

/// The state in which a machine was put back, or began to run twice.
#[derive(Debug, Clone, Copy)]
pub(super) struct Astray {
    /// The incarnation of its agent.
    incarnation: u32,
    /// Its member's process, and the member's incarnation.
    voice: Option<(u32, u32)>,
    /// Original and clone both run: only an end of one of them resolves that.
    is_twice: bool,
    /// The machine was put back, or is the clone.
    forgets: bool,
}

impl<P: Protocol> Host<P> {
    /// Copies memory, clocks and disk. The standby of a service is not copied: operators decide about it, and
    /// the copy would take over a second time.
    pub(in super::super) fn copy(&self, copies: &mut Copies) -> Self {
        let service = self.service.as_ref().filter(|service| matches!(service.role, Role::Master { .. }));
        Self {
            id: self.id,
            clock: self.clock,
            is_up: self.is_up,
            starts: self.starts,
            agent: self.agent.as_ref().map(|agent| agent.copy(copies)),
            incarnation: self.incarnation,
            seat: self.seat.as_ref().map(|seat| seat.copy(copies)),
            ended_ns: self.ended_ns,
            service: service.map(|service| service.copy(copies)),
            record: self.record.clone(),
            store: self.store.clone(),
            aside: self.aside.clone(),
            full_until_ns: self.full_until_ns,
            votes: self.votes.clone(),
            promise: self.promise.clone(),
            lives: self.lives,
            orphaned: self.orphaned.clone(),
            numbers: self.numbers.clone(),
            acted: self.acted,
            inbox: self.inbox.clone(),
            kernel: self.kernel.clone(),
            paused_until_ns: self.paused_until_ns,
            suspended_until_ns: self.suspended_until_ns,
            stopped_until_ns: self.stopped_until_ns,
            believes: self.believes,
            wall_least_s: self.wall_least_s,
            astray: self.astray,
            machine: self.machine,
            turn_ns: self.turn_ns,
            restart_ns: self.restart_ns,
            leaves: self.leaves,
            dies_after: self.dies_after,
        }
    }

    /// The copy from `then_ns` runs from now on, and cannot detect it.
    pub(in super::super) fn go_on(&mut self, plan: &Plan, then_ns: u64, now_ns: u64) {
        let later = |at_ns: &mut u64| {
            if *at_ns >= then_ns && *at_ns != u64::MAX {
                *at_ns += now_ns - then_ns;
            }
        };
        self.clock.go_on(then_ns, now_ns);
        self.numbers.go_on_later(now_ns - then_ns);
        [&mut self.ended_ns, &mut self.paused_until_ns, &mut self.suspended_until_ns, &mut self.stopped_until_ns]
            .into_iter()
            .for_each(later);
        self.restart_ns.iter_mut().for_each(later);
        self.turn_ns = now_ns.max(self.paused_until_ns);
        if let Some(seat) = &mut self.seat {
            [&mut seat.paused_until_ns, &mut seat.ends_ns].into_iter().for_each(later);
            seat.turn_ns = now_ns.max(seat.paused_until_ns);
        }
        if let Some(service) = &mut self.service {
            [&mut service.looked_ns, &mut service.paused_until_ns].into_iter().for_each(later);
            service.turn_ns = now_ns.max(service.paused_until_ns);
        }
        self.begin_to_believe(plan, now_ns);
        self.go_astray(false, true);
    }

    pub(in super::super) fn go_astray(&mut self, is_twice: bool, forgets: bool) {
        let voice = self.seat.as_ref().map(super::Seat::voice);
        self.astray = Some(Astray { incarnation: self.incarnation, voice, is_twice, forgets });
    }

    /// The agent knows that its machine was put back, or has a clone.
    pub(in super::super) fn is_found_out(&self) -> bool {
        self.agent.as_ref().is_some_and(|agent| agent.detector.is_put_back())
    }

    /// The clone was found out, and sends nothing more. A machine that was itself put back stays astray.
    pub(in super::super) fn is_alone(&mut self) {
        self.astray.take_if(|astray| astray.is_twice);
    }

    /// The machine was put back, or runs twice: nothing is promised about what it does.
    pub(in super::super) fn is_astray(&self) -> bool {
        self.astray.is_some()
    }

    /// The agent has forgotten what it said after the snapshot, and continues as the incarnation of the
    /// snapshot.
    pub(in super::super) fn forgets(&self) -> bool {
        self.astray.is_some_and(|astray| astray.forgets) && self.is_astray_as(self.incarnation)
    }

    /// The member is astray, and continues as this incarnation.
    pub(in super::super) fn speaks_as_before(&self, member: u32) -> bool {
        let before = self.astray.and_then(|astray| astray.voice);
        let now = self.seat.as_ref().map(super::Seat::voice);
        before.is_some_and(|voice| voice.1 == member && Some(voice) == now)
    }

    pub(super) fn is_astray_as(&self, incarnation: u32) -> bool {
        self.astray.is_some_and(|astray| astray.is_twice || astray.incarnation == incarnation)
    }

    /// No longer astray once agent and member have new incarnations and no lease from before is left.
    pub(in super::super) fn find_itself(&mut self, now_ns: u64) {
        let Some(Astray { incarnation, voice, is_twice, .. }) = self.astray else { return };
        let is_another = self.agent.is_some() && self.incarnation != incarnation;
        let speaks = self.seat.as_ref().map(super::Seat::voice);
        if !is_twice && is_another && (speaks != voice || voice.is_none()) && !self.believes_old(now_ns) {
            self.astray = None;
        }
    }
}
