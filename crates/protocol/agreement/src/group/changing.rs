// SPDX-License-Identifier: Apache-2.0
//! From one view to the next, and the state for those who join.

use std::collections::VecDeque;

use fide_types::{
    HostSet,
    planted::{self, Planted},
};

use super::{
    Config, Group, Standing,
    admission::{Asks, Base},
    control::Control,
    datagram::DatagramError,
    entry::{self, Entry},
    epoch::Epoch,
    joining::Welcome,
    tail::Tail,
};
use crate::{Refused, Start, batch, lease::Lease, transfer, view::View};

/// Who joins asks at each of its resends; so many of this member's without a question, and there is nobody. It may be many times slower
/// than this member.
const UNASKED_RESENDS: u32 = 256;

impl<P: Start> Group<P> {
    /// Takes a member out of the group, this one or another. Only a leader whose lease holds is asked.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn remove(&mut self, lease: Lease, host: u16) -> Result<(), Refused> {
        self.settle();
        let epoch = self.leading(lease)?;
        if epoch.view.place(host).is_none() {
            return Err(Refused::NoMember { host });
        }
        // Whoever leads then takes out the others.
        if self.admission.goes && host != self.config.me {
            return Err(Refused::Changing);
        }
        self.admission.remove(host);
        self.manage(lease);
        Ok(())
    }

    /// Somebody wants to be let in, or is in and has no state.
    pub(super) fn asked(&mut self, from: u16, asks: Asks) -> Result<(), DatagramError> {
        let Some(epoch) = self.current.as_mut().filter(|_| self.standing == Standing::Member) else { return Ok(()) };
        let is_in = epoch.view.holds(from, asks.incarnation);
        let mine = match epoch.view.place(from).filter(|_| is_in) {
            Some(place) => epoch.gives_state(place),
            None => epoch.leads(),
        };
        if let Some(position) = asks.have.filter(|have| mine && *have > self.position) {
            return Err(DatagramError::Future { position, told: self.position });
        }
        // Also where another answers: it may die.
        self.tail.keep();
        self.unasked = 0;
        if !mine {
            return Ok(());
        }
        let to = HostSet::from_iter([from]);
        if is_in {
            let (start, view) = (epoch.start, epoch.view.clone());
            if let Some((from_position, decisions)) =
                asks.have.and_then(|have| Some((have, self.tail.since(have, start)?)))
            {
                let Ok(decisions) = self.transfers.hold(decisions) else { return Ok(()) };
                let old = self.kept[usize::from(from) - 1].replace(decisions);
                if let Some(old) = old.filter(|old| *old != decisions) {
                    self.give_up(&old);
                }
                self.say(to, Control::Welcome { from: from_position, start, decisions, view });
                return Ok(());
            }
        } else {
            self.admission.asked(from, asks);
            if asks.have.is_some_and(|have| have >= self.tail.reaches_from()) {
                return Ok(());
            }
        }
        match self.admission.base.filter(|base| base.position >= self.tail.reaches_from()) {
            Some(Base { position, state }) => self.say(to, Control::Base { position, state }),
            None => self.admission.wanted_by.insert(from),
        }
        Ok(())
    }

    /// To be called at each resend: what is kept for those who join goes once nobody asks any more.
    pub(super) fn rest(&mut self) {
        self.unasked += u32::from(self.tail.keeps());
        if self.unasked < UNASKED_RESENDS {
            return;
        }
        self.unasked = 0;
        self.tail.keep_nothing();
        if let Some(base) = self.admission.base.take() {
            self.give_up(&base.state);
        }
    }

    /// Whether the user's state is wanted, for somebody who joins: as it is after all that was told.
    #[must_use]
    pub fn wants_state(&self) -> bool {
        !self.admission.wanted_by.is_empty() && self.standing == Standing::Member
    }

    /// The user's state, after all that was told and nothing else.
    ///
    /// # Errors
    /// It is longer than a payload may be, or than there is room for.
    pub fn give_state(&mut self, state: Vec<u8>) -> Result<(), transfer::RoomError> {
        let to = std::mem::take(&mut self.admission.wanted_by);
        let state = self.transfers.hold(state)?;
        let base = Base { position: self.position, state };
        // At once: whoever asks seldom would come again when nothing is kept for it any more.
        if !to.is_empty() && !planted::is(Planted::OffersWhenAsked) {
            self.say(to, Control::Base { position: self.position, state });
        }
        if let Some(old) = self.admission.base.replace(base).filter(|old| old.state != state) {
            self.give_up(&old.state);
        }
        Ok(())
    }

    /// The state that the user has to put in place of its own, and after which position it is. To be asked after each call while
    /// [`Standing::Joining`]; [`Group::installed`] says that it was done.
    #[must_use]
    pub fn poll_install(&self) -> Option<(u64, &[u8])> {
        let (position, state) = self.joining.installable()?;
        Some((position, self.transfers.get(&state)?))
    }

    /// The state of [`Group::poll_install`] is the user's now. No other call may come between the two, or it may not be offered any more:
    /// [`Group::take_install`] is both at once. Nothing happens where there was none.
    pub fn installed(&mut self) {
        if self.joining.installable().is_none() {
            return;
        }
        self.joining.installed(&mut self.transfers);
        self.position = self.joining.have().unwrap_or(self.position);
        // What was the user's before is gone.
        self.past.replaced();
        self.ask();
    }

    /// The state that the user has to put in place of its own, and after which position it is: it counts as the user's from here on.
    pub fn take_install(&mut self) -> Option<(u64, Vec<u8>)> {
        let (position, state) = self.poll_install()?;
        let state = state.to_vec();
        self.installed();
        Some((position, state))
    }

    pub(super) fn ask(&mut self) {
        let up = (1..).zip(&self.up).filter(|(_, up)| **up != 0).map(|(host, _)| host);
        let others: HostSet = up.collect::<HostSet>().and(self.config.hosts);
        if !others.is_empty() {
            self.say(others, Control::Join { have: self.joining.have() });
        }
    }

    /// Proposes the next view, if there should be one.
    pub(super) fn manage(&mut self, lease: Lease) {
        if !self.may_answer(lease) || self.admission.closing || !self.again.is_empty() {
            return;
        }
        self.admission.next_waits = false;
        let Some(epoch) = &self.current else { return };
        let Some(view) = self.admission.next(&epoch.view, epoch.alive(), self.tail.reaches_from()) else { return };
        // The setting has to suit so many.
        if P::start(&self.config.setting, 1, HostSet::first(view.members().len())).is_err() {
            return;
        }
        let mut content = Vec::new();
        view.write(&mut content);
        let proposed = self.propose_entry(Some(entry::VIEW), &content);
        self.admission.closing = proposed.is_ok();
        self.admission.goes = proposed.is_ok() && !view.holds(self.config.me, self.config.incarnation);
        self.admission.next_waits = proposed == Err(Refused::Full);
    }

    /// The epoch has ended: the next one.
    pub(super) fn begin_next(&mut self, view: View) {
        let Some(mut old) = self.current.take() else { return };
        let again = &mut self.again;
        old.protocol.close(&mut |batch| again.extend(batch::values(batch).map(<[u8]>::to_vec)));
        let offered = &mut self.offered;
        self.again.retain(|entry| match Entry::read(entry) {
            Some(Entry::Value(_)) => !planted::is(Planted::DropsUndecided),
            // New members lack it.
            Some(Entry::Payload(identity)) => {
                if !offered.contains(&identity) {
                    offered.push(identity);
                }
                false
            }
            // A view that came too late is none.
            _ => false,
        });
        self.previous = Some(old).filter(|_| !planted::is(Planted::LeavesLaggards));
        self.admission.begun(&view);
        self.begin(view, self.position);
        self.take_early();
        self.sort_payloads();
    }

    /// Whoever has asked to be let in begins, if it has all that a member needs.
    pub(super) fn enter(&mut self) {
        let Some((welcome, decisions)) = self.joining.complete() else { return };
        let Welcome { from, start, view, .. } = welcome;
        self.forming = None;
        self.past.forget();
        (self.position, self.tail) = (from, Tail::new(from, self.config.tail_max));
        self.catching = decisions;
        if planted::is(Planted::JoinsWithout) {
            (self.position, self.catching) = (start, VecDeque::new());
        }
        self.begin(view, start);
    }

    pub(super) fn begin(&mut self, view: View, start: u64) {
        let Config { me, incarnation, .. } = self.config;
        let is_in = view.holds(me, incarnation);
        let epoch = is_in.then(|| Epoch::new(&self.config.setting, view.clone(), me, start));
        // The leader has seen that the setting suits the view before it proposed it.
        let Some(Ok(mut epoch)) = epoch else {
            let ends = planted::is(Planted::RemovedEndsEarly);
            self.standing = if ends { Standing::Removed } else { Standing::Leaving };
            self.past.taken_out(view);
            self.again.clear();
            return;
        };
        for member in epoch.view.clone().members() {
            if let Some(dead) = self.dead.get(usize::from(member.host) - 1) {
                epoch.crashed(member.host, *dead);
            }
        }
        self.current = Some(epoch);
        self.standing = Standing::Member;
        for host in self.others().iter() {
            let up = self.up[usize::from(host) - 1];
            if self.is_awaited(host, |member| member > up) {
                self.transfers.away(host);
            }
        }
    }
}
