// SPDX-License-Identifier: Apache-2.0
//! What comes from other hosts, and what is sent to them.

use fide_types::{
    HostSet,
    planted::{self, Planted},
};

use super::{
    Config, Group, Standing,
    admission::Asks,
    control::Control,
    datagram::{DatagramError, Kind, Prefix},
    joining::Welcome,
};
use crate::{
    Start,
    message::Message,
    view::{Member, View},
};

/// Messages of the group that wait to be polled; more are dropped.
const OUT_MAX: usize = 1024;
/// Messages of the next view that wait for it to begin; more are dropped, and sent again.
const EARLY_MAX: usize = 256;

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
        // A message of the protocol is for those of its view, and so for no other incarnation of theirs.
        let for_all = prefix.kind == Kind::Protocol && prefix.receiver == 0;
        if prefix.receiver != mine && !for_all {
            return Err(DatagramError::NotMine { got: prefix.receiver, want: mine });
        }
        if prefix.kind == Kind::Protocol {
            if self.is_early(from, &prefix) {
                if self.early.len() < EARLY_MAX {
                    self.early.push_back((from, datagram.to_vec()));
                }
                return Ok(());
            }
            return self.receive_protocol(from, &prefix, message);
        }
        let up = self.up[usize::from(from) - 1];
        if prefix.sender != up {
            return Err(DatagramError::OtherIncarnation { host: from, got: prefix.sender, want: up });
        }
        match prefix.kind {
            Kind::Transfer => self.transfers.receive(from, message)?,
            _ => self.receive_control(from, &prefix, Control::read(message)?)?,
        }
        self.pump();
        Ok(())
    }

    /// A member has begun the next view: this one is about to.
    fn is_early(&self, from: u16, prefix: &Prefix) -> bool {
        let here = self.view().map_or(0, View::number);
        self.standing == Standing::Member
            && here.checked_add(1) == Some(prefix.view)
            && self.up[usize::from(from) - 1] == prefix.sender
    }

    /// The view has begun that these were waiting for.
    pub(super) fn take_early(&mut self) {
        for (from, datagram) in std::mem::take(&mut self.early) {
            let Ok((prefix, message)) = Prefix::read(&datagram) else { continue };
            // Of a view that this one is not, or of one who is no member: as if it came now.
            let _ = self.receive_protocol(from, &prefix, message);
        }
    }

    pub(super) fn receive_protocol(&mut self, from: u16, prefix: &Prefix, message: &[u8]) -> Result<(), DatagramError> {
        let mut epochs = self.current.iter_mut().chain(&mut self.previous);
        let Some(epoch) = epochs.find(|epoch| epoch.view.number() == prefix.view) else {
            return Err(self.other_view(from, prefix));
        };
        let place = epoch.view.place(from).ok_or(DatagramError::Stranger { host: from })?;
        let want = epoch.view.incarnation(from).unwrap_or(0);
        if prefix.sender != want {
            return Err(DatagramError::OtherIncarnation { host: from, got: prefix.sender, want });
        }
        epoch.heard(place);
        Ok(epoch.protocol.receive(place, &Message::read(message)?)?)
    }

    /// Somebody speaks of a view that is neither this one nor the one before. Whoever is in none any more is told so.
    pub(super) fn other_view(&mut self, from: u16, prefix: &Prefix) -> DatagramError {
        let here = self.view().map_or(0, View::number);
        let is_in = self.current.as_ref().is_some_and(|epoch| epoch.view.holds(from, prefix.sender));
        if prefix.view < here && !is_in {
            self.say(HostSet::from_iter([from]), Control::Over);
        }
        DatagramError::OtherView { got: prefix.view, here }
    }

    pub(super) fn receive_control(
        &mut self,
        from: u16,
        prefix: &Prefix,
        control: Control,
    ) -> Result<(), DatagramError> {
        // The end of a member is not told to who is out meanwhile.
        let over = Some(self.past.member(from)).filter(|member| *member > prefix.sender).unwrap_or(0);
        let dead = self.dead[usize::from(from) - 1].max(over);
        let too_low = prefix.sender <= dead && !planted::is(Planted::LetsInTheDead);
        match control {
            // It lives, and in no view could it be anything but dead.
            Control::Join { .. } | Control::Present { .. } if too_low => {
                self.say(HostSet::from_iter([from]), Control::Higher { dead });
            }
            Control::Higher { dead } if self.standing == Standing::Joining => self.past.is_held_dead(dead),
            Control::Join { have } => {
                self.past.is_joining(from, prefix.sender);
                self.asked(from, Asks { incarnation: prefix.sender, have })?;
            }
            Control::Base { position, state }
                if self.standing == Standing::Joining
                    && self.past.held().is_none_or(|held| held.gives_way_to(prefix.view, self.config.me)) =>
            {
                self.joining.offered(from, position, state, &mut self.transfers);
            }
            Control::Welcome { from: after, start, decisions, view }
                if self.standing == Standing::Joining && view.holds(self.config.me, self.config.incarnation) =>
            {
                let welcome = Welcome { by: from, from: after, start, decisions, view };
                self.joining.welcomed(welcome, &mut self.transfers);
            }
            Control::Dead { places, asks } => {
                let served = self.previous.as_ref().is_some_and(|epoch| epoch.view.number() == prefix.view);
                let current = self.current.as_mut().filter(|epoch| epoch.view.number() == prefix.view);
                let Some(epoch) = current.filter(|epoch| epoch.view.holds(from, prefix.sender)) else {
                    return if served { Ok(()) } else { Err(self.other_view(from, prefix)) };
                };
                let news = epoch.note_dead(from, places);
                let members: Vec<_> = news.iter().filter_map(|place| epoch.view.member(place)).collect();
                // For members that have heard this one, trust only our detector: it guarantees that at most one of a pair is told
                // that the other is gone.
                let met = |member: &Member| {
                    let known = self.up[usize::from(member.host) - 1] == member.incarnation;
                    let met = self.met.contains(member.host) && !planted::is(Planted::BelievesOfTheMet);
                    known && met || self.unsure.contains(member.host)
                };
                let strangers: Vec<Member> = members.into_iter().filter(|member| !met(member)).collect();
                for member in strangers {
                    self.crashed(member.host, member.incarnation);
                }
                if asks && let Some(epoch) = &self.current {
                    let answer = Control::Dead { places: epoch.dead(), asks: false };
                    self.say(HostSet::from_iter([from]), answer);
                }
            }
            Control::Present { ballot, is_first } => self.presented(from, prefix.sender, ballot, is_first),
            Control::Begin { ballot, view } if self.standing == Standing::Joining => {
                self.begun(from, prefix.sender, prefix.view != 0, ballot, view);
            }
            Control::Recorded => self.forms_none(from, prefix.sender),
            Control::Claim(claim) => self.claimed(from, prefix.sender, claim),
            Control::Over if self.view().is_some_and(|view| view.number() < prefix.view) => {
                self.standing = Standing::Removed;
            }
            // Who has no view was taken out later, and says it only of the view that it was asked about.
            Control::Over
                if self.standing == Standing::Leaving
                    && (prefix.view == 0 || self.past.is_replaced_by(prefix.view)) =>
            {
                self.standing = Standing::Removed;
            }
            Control::Out { view }
                if self.standing == Standing::Joining
                    && view.holds(self.config.me, self.config.incarnation)
                    && !view.holds(from, prefix.sender) =>
            {
                self.past.is_let_in(view);
            }
            Control::Out { view } => {
                let is_late = |mine: &View| mine.number() >= view.number() && !mine.holds(from, prefix.sender);
                // Whoever was taken out later has begun it, too, and may be all that is left of those who are asked.
                let was_in = self.previous.as_ref().map(|epoch| &epoch.view);
                let begun = match self.standing {
                    Standing::Member => self.view(),
                    Standing::Leaving | Standing::Removed => {
                        was_in.filter(|_| !planted::is(Planted::TakenOutInSilence))
                    }
                    _ => None,
                };
                if begun.is_some_and(is_late) {
                    self.say(HostSet::from_iter([from]), Control::Over);
                }
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn say(&mut self, to: HostSet, control: Control) {
        // Places are those of the view in which they were meant.
        let view = self.view().map_or(0, View::number);
        // Whatever is dropped is said again at the next resend, or asked for.
        if self.out.len() < OUT_MAX {
            self.out.push_back((to, view, control));
        }
    }

    /// The next datagram, written over `datagram`, without the receiver's incarnation ([`Group::is_for_all`]); to whom.
    pub fn poll_transmit(&mut self, datagram: &mut Vec<u8>) -> Option<HostSet> {
        self.settle();
        if self.standing.is_over() {
            return None;
        }
        let Config { group, incarnation: sender, .. } = self.config;
        let view = self.view().map_or(0, View::number);
        let prefix = Prefix { group, sender, receiver: 0, view, kind: Kind::Control };
        datagram.clear();
        if let Some((to, view, control)) = self.out.pop_front() {
            Prefix { view, ..prefix }.write(datagram);
            control.write(datagram);
            return Some(to);
        }
        for epoch in self.current.iter_mut().chain(&mut self.previous) {
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

    /// The next datagram for all members at once, for the next heartbeat, written over `datagram`. To be asked as
    /// [`Group::poll_transmit`] is. What becomes of it is no promise: with leases it is sent again where it did not arrive.
    pub fn poll_broadcast(&mut self, datagram: &mut Vec<u8>) -> bool {
        self.settle();
        let Some(epoch) = self.current.as_mut().filter(|_| !self.standing.is_over()) else { return false };
        let Some(message) = epoch.protocol.poll_broadcast() else { return false };
        let Config { group, incarnation: sender, .. } = self.config;
        datagram.clear();
        Prefix { group, sender, receiver: 0, view: epoch.view.number(), kind: Kind::Protocol }.write(datagram);
        message.write(datagram);
        true
    }

    /// The heartbeat with the last [`Group::poll_broadcast`] has left on all trees. Only protocols that trust the network ask for it.
    pub fn broadcast_left(&mut self) {
        if let Some(epoch) = &mut self.current {
            epoch.protocol.broadcast_left();
        }
    }

    /// Whether a datagram of [`Group::poll_transmit`] is the same for all it goes to: those of the protocol are, as a view has one
    /// incarnation of each host. Of others each receiver's is written first ([`Group::address`]).
    #[must_use]
    pub fn is_for_all(datagram: &[u8]) -> bool {
        Prefix::read(datagram).is_ok_and(|(prefix, _)| prefix.kind == Kind::Protocol)
    }

    /// Writes for whom a datagram is; nothing where it is the same for all.
    pub fn address(&self, datagram: &mut [u8], to: u16) {
        if !Self::is_for_all(datagram) {
            let up = self.up.get(usize::from(to).wrapping_sub(1)).copied().unwrap_or(0);
            Prefix::address(datagram, up);
        }
    }
}
