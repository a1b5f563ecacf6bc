// SPDX-License-Identifier: Apache-2.0
//! Datagrams from other hosts, and to them.

use fide_types::{
    HostSet,
    planted::{self, Planted},
};

use super::{
    Config, Group, Standing,
    admission::Request,
    control::Control,
    datagram::{DatagramError, Kind, Prefix},
    joining::Welcome,
};
use crate::{
    Start,
    view::{View, ViewMember},
};

impl<P: Start> Group<P> {
    /// A datagram has come from a host.
    ///
    /// # Errors
    /// [`DatagramError`]; nothing has changed.
    pub fn receive(&mut self, from: u16, datagram: &[u8]) -> Result<(), DatagramError> {
        self.settle();
        if self.standing.is_over() {
            return Err(DatagramError::Stopped);
        }
        let (prefix, message) = Prefix::read(datagram)?;
        let (group, mine) = (self.config.group, self.config.incarnation);
        if prefix.group != group {
            return Err(DatagramError::OtherGroup { got: prefix.group, want: group });
        }
        if from == self.config.me || !self.config.hosts.contains(from) {
            return Err(DatagramError::Stranger { host: from });
        }
        // A message of the protocol is for the members of its view, and therefore for no other incarnation of
        // their hosts.
        let for_all = prefix.kind == Kind::Protocol && prefix.receiver == 0;
        if prefix.receiver != mine && !for_all {
            return Err(DatagramError::NotMine { got: prefix.receiver, want: mine });
        }
        if prefix.kind == Kind::Protocol {
            if self.is_early(from, &prefix) {
                self.epochs.keep_early(from, datagram);
                return Ok(());
            }
            return self.receive_protocol(from, &prefix, message);
        }
        let up = self.liveness.up(from);
        if prefix.sender != up {
            return Err(DatagramError::OtherIncarnation { host: from, got: prefix.sender, want: up });
        }
        self.shown.note(from, &prefix);
        match prefix.kind {
            Kind::Transfer => self.transfers.receive(from, message)?,
            _ => self.receive_control(from, &prefix, Control::read(message)?)?,
        }
        self.pump();
        Ok(())
    }

    fn receive_control(&mut self, from: u16, prefix: &Prefix, control: Control) -> Result<(), DatagramError> {
        let dead = self.highest_dead(from, prefix.sender);
        let is_dead = prefix.sender <= dead && !planted::is(Planted::LetsInTheDead);
        let is_joining = self.standing == Standing::Joining;
        // While others hold it dead it becomes no member as that incarnation.
        let may_enter = is_joining && !self.is_reported_dead();
        let is_mine = |view: &View| view.holds(self.config.me, self.config.incarnation);
        let takes_welcome = |view: &View| may_enter && is_mine(view) && !self.founding.refuses_welcome_to(view);
        match control {
            // The sender lives, and in any view it would be dead from the beginning.
            Control::Join { .. } | Control::Present { .. } | Control::Claim(_) if is_dead => {
                self.say(HostSet::only(from), Control::Higher { dead });
            }
            // Others have let it in, which do not know.
            Control::Base { .. } | Control::Welcome { .. } | Control::Begin { .. } if is_joining && is_dead => {
                self.say(HostSet::only(from), Control::Higher { dead });
            }
            Control::Welcome { ref view, .. } | Control::Begin { ref view, .. }
                if is_joining && !self.held_dead_of(view).is_empty() =>
            {
                self.tell_held_dead(&view.clone());
            }
            Control::Higher { dead } if is_joining || self.standing == Standing::Member => {
                self.past.note_reported_dead(dead);
            }
            Control::Join { have } => {
                self.past.note_asking(from, prefix.sender);
                self.handle_join(from, Request { incarnation: prefix.sender, have })?;
            }
            Control::Base { position, state } if may_enter && self.takes_over_from(prefix.view) => {
                self.joining.offered(from, position, state, &mut self.transfers);
            }
            Control::Welcome { from: after, start, decisions, view } if takes_welcome(&view) => {
                let welcome = Welcome { by: from, from: after, start, decisions, view };
                self.joining.welcomed(welcome, &mut self.transfers);
            }
            Control::Dead { places, asks } => self.handle_dead(from, prefix, places, asks)?,
            Control::Present { ballot, is_first } => self.handle_present(from, prefix.sender, ballot, is_first),
            Control::Begin { ballot, view } if may_enter => {
                self.handle_begin(from, prefix.sender, prefix.view != 0, ballot, view);
            }
            Control::Recorded => self.handle_recorded(from, prefix.sender),
            Control::Claim(claim) => self.handle_claim(from, prefix.sender, claim),
            Control::Stored { position, asks } => self.handle_stored(from, prefix.sender, position, asks),
            Control::Told { position } => self.handle_told(from, prefix.sender, position),
            Control::Over => self.handle_over(prefix.view),
            Control::Out { view } if is_joining && is_mine(&view) && !view.holds(from, prefix.sender) => {
                self.past.note_let_in(view);
            }
            Control::Out { view } => self.handle_out(from, prefix.sender, &view),
            _ => {}
        }
        Ok(())
    }

    /// Whether this host takes over the state of a member of view `number`: it keeps none, or its own gives
    /// way.
    fn takes_over_from(&self, number: u32) -> bool {
        self.past.membership().is_none_or(|membership| membership.gives_way_to(number, self.config.me))
    }

    /// Of [`Control::Dead`]: a member of the present view reports which members are dead.
    fn handle_dead(&mut self, from: u16, prefix: &Prefix, places: HostSet, asks: bool) -> Result<(), DatagramError> {
        let is_previous = self.epochs.previous().is_some_and(|epoch| epoch.view.number() == prefix.view);
        let current = self.epochs.current_mut().filter(|epoch| epoch.view.number() == prefix.view);
        let Some(epoch) = current.filter(|epoch| epoch.view.holds(from, prefix.sender)) else {
            return if is_previous { Ok(()) } else { Err(self.refuse_other_view(from, prefix)) };
        };
        let news = epoch.note_dead(from, places);
        let members: Vec<ViewMember> = news.iter().filter_map(|place| epoch.view.member(place)).collect();
        // For members that have heard this one, trust only our detector: it guarantees that at most one of a
        // pair learns that the other is gone.
        let strangers: Vec<ViewMember> =
            members.into_iter().filter(|member| !self.liveness.trusts_only_own_detector(member)).collect();
        for member in strangers {
            self.crashed(member.host, member.incarnation);
        }
        if asks && let Some(epoch) = self.epochs.current() {
            let answer = Control::Dead { places: epoch.dead(), asks: false };
            self.say(HostSet::only(from), answer);
        }
        Ok(())
    }

    /// Of [`Control::Over`], from a member of view `number`; 0 for none.
    fn handle_over(&mut self, number: u32) {
        let is_replaced = match self.standing {
            // A sender without a view was taken out later, and says it only of the view that it was asked
            // about.
            Standing::Leaving if number == 0 || self.past.is_replaced_by(number) => true,
            _ => self.view().is_some_and(|view| view.number() < number),
        };
        if is_replaced {
            self.standing = Standing::Removed;
        }
    }

    /// Of [`Control::Out`]: a member that was taken out by a view asks whether it has begun.
    fn handle_out(&mut self, from: u16, sender: u32, view: &View) {
        let has_begun = |mine: &View| mine.number() >= view.number() && !mine.holds(from, sender);
        // A member that was taken out later has begun the view too, and may be the only one left of those
        // that are asked.
        let begun = match self.standing {
            // A view that is not on disk may be over with this process.
            Standing::Member => self.view().filter(|view| self.durable.may_welcome(view.number())),
            Standing::Leaving | Standing::Removed if !planted::is(Planted::TakenOutInSilence) => {
                self.epochs.previous().map(|epoch| &epoch.view)
            }
            _ => None,
        };
        if begun.is_some_and(has_begun) {
            self.say(HostSet::only(from), Control::Over);
        }
    }

    /// The next datagram, written over `datagram`, and the hosts it is for. The receiver's incarnation is
    /// left out ([`Group::is_for_all`]).
    pub fn poll_transmit(&mut self, datagram: &mut Vec<u8>) -> Option<HostSet> {
        self.settle();
        if self.standing.is_over() {
            return None;
        }
        let Config { group, incarnation: sender, .. } = self.config;
        let view = self.epochs.number();
        let prefix = Prefix { group, sender, receiver: 0, view, kind: Kind::Control };
        datagram.clear();
        if let Some((to, view, control)) = self.outbox.pop() {
            Prefix { view, ..prefix }.write(datagram);
            control.write(datagram);
            return Some(to);
        }
        for epoch in self.epochs.iter_mut() {
            if let Some((places, message)) = epoch.protocol.poll_transmit() {
                Prefix { view: epoch.view.number(), kind: Kind::Protocol, ..prefix }.write(datagram);
                message.write(datagram);
                return Some(epoch.view.hosts_of(places));
            }
        }
        let to = self.transfers.poll_transmit(&mut self.scratch)?;
        Prefix { kind: Kind::Transfer, ..prefix }.write(datagram);
        datagram.extend_from_slice(&self.scratch);
        Some(to)
    }

    /// The next datagram for all members at once, for the next heartbeat, written over `datagram`. To be
    /// asked as [`Group::poll_transmit`] is. It need not arrive: with leases it is sent again where it did
    /// not.
    pub fn poll_broadcast(&mut self, datagram: &mut Vec<u8>) -> bool {
        self.settle();
        if self.standing.is_over() {
            return false;
        }
        let Some(epoch) = self.epochs.current_mut() else { return false };
        let Some(message) = epoch.protocol.poll_broadcast() else { return false };
        let Config { group, incarnation: sender, .. } = self.config;
        datagram.clear();
        Prefix { group, sender, receiver: 0, view: epoch.view.number(), kind: Kind::Protocol }.write(datagram);
        message.write(datagram);
        true
    }

    /// The heartbeat with the last [`Group::poll_broadcast`] has left on all trees. Only protocols that trust
    /// the network need it.
    pub fn broadcast_left(&mut self) {
        if let Some(epoch) = self.epochs.current_mut() {
            epoch.protocol.broadcast_left();
        }
    }

    /// Whether a datagram of [`Group::poll_transmit`] is the same for all its receivers. Those of the
    /// protocol are, as a view has one incarnation of each host. Into any other, each receiver's incarnation
    /// is written first ([`Group::address`]).
    #[must_use]
    pub fn is_for_all(datagram: &[u8]) -> bool {
        Prefix::read(datagram).is_ok_and(|(prefix, _)| prefix.kind == Kind::Protocol)
    }

    /// Writes the receiver's incarnation into a datagram; nothing where it is the same for all.
    pub fn address(&self, datagram: &mut [u8], to: u16) {
        if !Self::is_for_all(datagram) {
            Prefix::address(datagram, self.liveness.up(to));
        }
    }
}
