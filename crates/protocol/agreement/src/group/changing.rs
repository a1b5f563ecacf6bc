// SPDX-License-Identifier: Apache-2.0
//! From one view to the next, and the state for hosts that join.

use fide_types::{
    HostId, HostSet,
    planted::{self, Planted},
};

use super::{
    Config, Group, Standing,
    admission::{Base, Request},
    control::Control,
    datagram::DatagramError,
    entry,
    epoch::Epoch,
    joining::{Backlog, Welcome},
    tail::Tail,
};
use crate::{Refused, Start, lease::Lease, transfer, view::View};

impl<P: Start> Group<P> {
    /// Takes a member out of the group, this one or another. Only a leader whose lease holds does.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn remove(&mut self, lease: Lease, host: HostId) -> Result<(), Refused> {
        self.settle();
        let epoch = self.leading(lease)?;
        if epoch.view.place(host).is_none() {
            return Err(Refused::NoMember { host });
        }
        // The next leader has to take out the others.
        if self.admission.is_leaving() && host != self.config.me || self.admission.is_handing_over() {
            return Err(Refused::Changing);
        }
        self.admission.remove(host);
        self.propose_next_view(lease);
        Ok(())
    }

    /// Hands the lead over to another member: it is the first one of the next view, which has the same members
    /// and comes after everything that was proposed here before. Nothing is proposed meanwhile
    /// ([`Refused::Changing`]). If that member dies first, this one goes on leading. Only a leader whose lease
    /// holds does it.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn hand_over(&mut self, lease: Lease, host: HostId) -> Result<(), Refused> {
        self.settle();
        self.may_hand_over(lease, host)?;
        self.admission.hand_over_to(host);
        self.propose_next_view(lease);
        Ok(())
    }

    /// Whether [`Group::hand_over`] would begin now.
    ///
    /// # Errors
    /// [`Refused`]: why not.
    pub fn may_hand_over(&self, lease: Lease, host: HostId) -> Result<(), Refused> {
        let epoch = self.leading(lease)?;
        if host == self.config.me {
            return Err(Refused::Leads { host });
        }
        let place = epoch.view.place(host).ok_or(Refused::NoMember { host })?;
        if !epoch.alive().contains(place) {
            return Err(Refused::Dead { host });
        }
        if epoch.lacks_state(place) {
            return Err(Refused::NoState { host });
        }
        // Members that are to be taken out are known here only.
        if self.admission.holds_up_proposals() || self.admission.removes() {
            return Err(Refused::Changing);
        }
        Ok(())
    }

    /// A host asks to be let in, or is in the view and lacks the state.
    pub(super) fn handle_join(&mut self, from: u16, request: Request) -> Result<(), DatagramError> {
        if self.standing != Standing::Member {
            return Ok(());
        }
        let Some(epoch) = self.epochs.current_mut() else { return Ok(()) };
        let number = epoch.view.number();
        let is_in = epoch.view.holds(from, request.incarnation);
        let is_for_me = match epoch.view.place(from).filter(|_| is_in) {
            Some(place) => epoch.gives_state(place),
            None => epoch.leads(),
        };
        if let Some(position) = request.have.filter(|have| is_for_me && *have > self.position) {
            return Err(DatagramError::Future { position, delivered: self.position });
        }
        // Also where another member answers, as that one may die.
        self.tail.keep();
        // A view that is not on disk may be over with this process: nobody may give anything up for it.
        if !is_for_me || !self.durable.may_welcome(number) {
            return Ok(());
        }
        let to = HostSet::only(from);
        if is_in {
            let (start, view) = (epoch.start, epoch.view.clone());
            if let Some((have, decisions)) = request.have.and_then(|have| Some((have, self.tail.since(have, start)?))) {
                let Ok(decisions) = self.transfers.store(decisions) else { return Ok(()) };
                let old = self.admission.replace_welcome(from, decisions);
                if let Some(old) = old.filter(|old| *old != decisions) {
                    self.forget_unneeded(&old);
                }
                self.say(to, Control::Welcome { from: have, start, decisions, view });
                return Ok(());
            }
        } else {
            self.admission.note_request(from, request);
            if request.have.is_some_and(|have| have >= self.tail.reaches_from()) {
                return Ok(());
            }
        }
        match self.admission.base(self.tail.reaches_from()) {
            Some(Base { position, state }) => self.say(to, Control::Base { position, state }),
            None => self.admission.want_state(from),
        }
        Ok(())
    }

    /// To be called at each resend: forgets what is kept for hosts that join once none has asked for long.
    pub(super) fn expire_tail(&mut self) {
        if self.tail.expire()
            && let Some(base) = self.admission.take_base()
        {
            self.forget_unneeded(&base.state);
        }
    }

    /// Whether the user's state is wanted, for a host that joins: the state after all delivered decisions.
    #[must_use]
    pub fn wants_state(&self) -> bool {
        self.admission.wants_state() && self.standing == Standing::Member
    }

    /// The user's state, after all delivered decisions and nothing else.
    ///
    /// # Errors
    /// It is longer than a payload may be, or than there is room for.
    pub fn give_state(&mut self, state: Vec<u8>) -> Result<(), transfer::RoomError> {
        let to = self.admission.take_state_wanted_by();
        let state = self.transfers.store(state)?;
        let base = Base { position: self.position, state };
        // At once: when a host that asks rarely asks again, the decisions since this state may not be kept
        // any more.
        let may_welcome = self.view().is_some_and(|view| self.durable.may_welcome(view.number()));
        if !to.is_empty() && may_welcome && !planted::is(Planted::OffersWhenAsked) {
            self.say(to, Control::Base { position: self.position, state });
        }
        if let Some(old) = self.admission.replace_base(base).filter(|old| old.state != state) {
            self.forget_unneeded(&old.state);
        }
        Ok(())
    }

    /// The state that the user has to put in place of its own, and its position. To be asked after each call
    /// while [`Standing::Joining`]; [`Group::installed`] says that it was done.
    #[must_use]
    pub fn poll_install(&self) -> Option<(u64, &[u8])> {
        let (position, state) = self.joining.installable()?;
        Some((position, self.transfers.get(&state)?))
    }

    /// The state of [`Group::poll_install`] is the user's now. No other call may come between the two, as the
    /// offer could be withdrawn; [`Group::take_install`] does both at once. Does nothing if there was no
    /// state.
    pub fn installed(&mut self) {
        if self.joining.installable().is_none() {
            return;
        }
        self.joining.installed(&mut self.transfers);
        self.position = self.joining.have().unwrap_or(self.position);
        // The user's former state is gone.
        self.past.note_replaced();
        self.durable.replaced(self.position);
        self.ask_to_join();
    }

    /// As [`Group::installed`], for a user that was offered a state and has put a later one in its place: the
    /// one after the decisions up to `position`, for example by following the member that made the offer.
    /// False, and nothing has changed, if there is no offer, or a later one.
    pub fn installed_at(&mut self, position: u64) -> bool {
        let fits = self.joining.installable().is_some_and(|(offered, _)| offered <= position);
        if fits {
            self.joining.move_base(position);
            self.installed();
        }
        fits
    }

    /// The user begins to replace its state by the one that is offered, in a way that leaves it without any if
    /// that fails: its former state is not counted on any more.
    pub fn state_dropped(&mut self) {
        self.joining.taken();
        self.past.note_replaced();
    }

    /// The user cannot have the state that is offered, for example as the host that it names is dead: another one is
    /// asked for. Does nothing if there is no offer.
    pub fn decline_offer(&mut self) {
        self.joining.declined(&mut self.transfers);
    }

    /// The state that the user has to put in place of its own, and its position. It counts as the user's from
    /// this call on.
    pub fn take_install(&mut self) -> Option<(u64, Vec<u8>)> {
        let (position, state) = self.poll_install()?;
        let state = state.to_vec();
        self.installed();
        Some((position, state))
    }

    pub(super) fn ask_to_join(&mut self) {
        let others = self.liveness.hosts_up().and(self.config.hosts);
        if !others.is_empty() {
            self.say(others, Control::Join { have: self.joining.have() });
        }
    }

    /// Proposes the next view, if this member leads and there should be one.
    pub(super) fn propose_next_view(&mut self, lease: Lease) {
        if !self.speaks_for_all(lease) || self.admission.is_closing() || self.pending.has_entries() {
            return;
        }
        // The next leader does not propose what was taken here: that goes first.
        if self.admission.is_handing_over() && self.pending.has_offered() {
            return;
        }
        self.admission.reopen();
        let Some(epoch) = self.epochs.current() else { return };
        let Some(view) = self.admission.next(&epoch.view, epoch.alive(), self.tail.reaches_from()) else { return };
        // The setting has to suit that many members.
        if P::start(&self.config.setting, 1, HostSet::first(view.members().len())).is_err() {
            return;
        }
        let mut content = Vec::new();
        view.write(&mut content);
        match self.propose_entry(Some(entry::VIEW), &content) {
            Ok(()) => self.admission.note_proposed(!view.holds(self.config.me, self.config.incarnation)),
            Err(Refused::Full) => self.admission.note_full(),
            Err(_) => {}
        }
    }

    /// The present epoch has ended with the delivery of this view, which begins.
    pub(super) fn begin_next(&mut self, view: View) {
        let Some(mut old) = self.epochs.take_current() else { return };
        old.protocol.close(&mut |batch| self.pending.take_back(batch));
        self.pending.keep_for_next_view();
        self.epochs.set_previous(Some(old).filter(|_| !planted::is(Planted::LeavesLaggards)));
        self.admission.begun(&view);
        self.begin(view, self.position);
        self.take_early();
        self.sort_payloads();
    }

    /// A host that joins becomes a member, once all has arrived that a member needs.
    pub(super) fn enter(&mut self) {
        let Some((welcome, decisions)) = self.joining.take_complete() else { return };
        let Welcome { from, start, view, .. } = welcome;
        self.founding.end();
        self.past.forget();
        let skips = planted::is(Planted::JoinsWithout);
        self.tail = Tail::new(from, self.config.tail_max);
        (self.position, self.backlog) =
            if skips { (start, Backlog::default()) } else { (from, Backlog::new(decisions)) };
        self.begin(view, start);
    }

    /// Begins a view, whose first position follows `start`; without this member, it leaves.
    pub(super) fn begin(&mut self, view: View, start: u64) {
        let Config { me, incarnation, .. } = self.config;
        let is_in = view.holds(me, incarnation);
        let epoch = is_in.then(|| Epoch::<P>::new(&self.config.setting, view.clone(), me, start));
        // The leader proposed the view only after it had seen that the setting suits it.
        let Some(Ok(mut epoch)) = epoch else {
            let ends = planted::is(Planted::RemovedEndsEarly);
            self.standing = if ends { Standing::Removed } else { Standing::Leaving };
            self.past.note_taken_out(view);
            self.pending.drop_entries();
            return;
        };
        if self.durable.is_on() {
            epoch.protocol.decide_before_leader();
        }
        self.tell_held_dead(&view);
        for member in view.members() {
            epoch.crashed(member.host, self.liveness.dead(member.host));
        }
        self.epochs.begin(epoch);
        self.standing = Standing::Member;
        self.durable.begun(start);
        self.note_told();
        for host in self.others().iter() {
            let up = self.liveness.up(host);
            if self.is_awaited(host, |member| member > up) {
                self.transfers.away(host);
            }
        }
    }
}
