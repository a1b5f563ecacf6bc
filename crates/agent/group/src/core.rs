// SPDX-License-Identifier: Apache-2.0
//! What a member does in each turn, and in which order, without its host: the agent is an [`Agent`], the
//! network a [`Port`], and the caller passes the time.
//!
//! [`crate::Member`] runs it on a real host, the simulator in a seeded world. One turn is
//! [`Core::before_wait`], the wait itself (until [`Core::due_ns`]), [`Core::after_wait`], storing what
//! [`Core::poll_record`] names, and [`Core::end_turn`].

use fide_agreement::{
    Group, HostSet, Lease, Standing, Start, View,
    group::{self, DatagramError},
    planted::{self, Planted},
};
use fide_client::Event;
use fide_types::HostId;

use crate::{
    Counters,
    liveness::Liveness,
    packet::{Opened, PacketError},
    versions::Spoken,
    waits::Waits,
};

/// Most events of the agent that are taken in one turn; if there are more, the next turn begins at once.
pub const EVENTS_PER_TURN: usize = 256;

/// The agent of a member's host.
pub trait Agent {
    type Error;

    /// The next event, in the agent's order.
    ///
    /// # Errors
    /// The agent's memory is damaged.
    fn poll_event(&mut self) -> Result<Option<Event>, Self::Error>;

    /// The lease of this process, and the time.
    fn lease(&self) -> Lease;

    /// Whether a host has said lately that it hears this one.
    fn is_heard_by(&self, host: HostId) -> bool;

    /// Hands over a message for the next heartbeat; false if there is no room for it.
    fn piggyback(&mut self, message: &[u8]) -> bool;

    /// Ends the watch on the member of a host and begins a new one. Returns the process that the new one
    /// finds up.
    ///
    /// # Errors
    /// The agent refuses, or is gone.
    fn watch_again(&mut self, host: HostId) -> Result<Option<u32>, Self::Error>;
}

/// The network: packets to and from the other members.
pub trait Port {
    /// Hands over the packets that have come, up to a bound.
    fn receive(&mut self, each: impl FnMut(Result<Opened<'_>, PacketError>));

    /// Puts a datagram into packets for some hosts. `plane`: the plane by which a host is reached.
    fn push(&mut self, to: HostSet, datagram: &[u8], plane: &dyn Fn(u16) -> usize);

    /// Begins a packet for a host, which shows its sender even if it stays empty, and may ask for a packet in
    /// return.
    fn begin(&mut self, to: u16, asks: bool);

    /// Sends all packets.
    fn flush(&mut self, plane: &dyn Fn(u16) -> usize);
}

/// A member, without its host.
#[derive(Debug, Clone)]
pub struct Core<P: Start> {
    pub group: Group<P>,
    pub(crate) liveness: Liveness,
    pub(crate) waits: Waits,
    me: u16,
    /// All other hosts that may be members.
    others: HostSet,
    resend_ns: u64,
    resend_every_ns: u64,
    /// The agent may have more events: no packet is taken before they are.
    has_more_events: bool,
    /// A value was proposed since the last wait.
    has_proposed: bool,
    datagram: Vec<u8>,
    pub counters: Counters,
    /// The last datagram that the group refused, its sender, and why.
    pub(crate) refused: Option<(u16, DatagramError)>,
    /// Hosts whose last datagram was of a group with other settings.
    pub(crate) differing: HostSet,
}

impl<P: Start> Core<P> {
    /// `is_founded`: this host has stored that there is a group.
    ///
    /// # Errors
    /// [`group::GroupError`].
    pub fn new(
        config: group::Config<P::Setting>,
        is_founded: bool,
        resend_every_ns: u64,
    ) -> Result<Self, group::GroupError> {
        let (me, others) = (config.me, config.hosts.minus(HostSet::only(config.me)));
        Ok(Self {
            group: if is_founded { Group::join(config)? } else { Group::form(config)? },
            liveness: Liveness::default(),
            waits: Waits::default(),
            me,
            others,
            resend_ns: 0,
            resend_every_ns,
            has_more_events: false,
            has_proposed: false,
            datagram: Vec::new(),
            counters: Counters::default(),
            refused: None,
            differing: HostSet::EMPTY,
        })
    }

    /// What this program speaks: processes that have no version of it in common are no members here.
    pub fn set_spoken(&mut self, spoken: Spoken) {
        self.liveness.set_spoken(spoken);
    }

    /// The hosts whose members have to be watched.
    pub fn others(&self) -> HostSet {
        self.others
    }

    /// A new watch has found this process of another member's host up, or none.
    pub fn watch_found(&mut self, host: HostId, process: Option<u32>) {
        self.liveness.watch_found(host, process, &mut self.group);
    }

    /// Before waiting: resends what is due, and sends all messages.
    pub fn before_wait(&mut self, now_ns: u64, agent: &mut impl Agent, port: &mut impl Port) {
        // Resend only once the user has consumed all decisions: otherwise a busy leader would never admit
        // joiners, as under load each packet brings more decisions.
        if now_ns >= self.resend_ns {
            self.resend_ns = now_ns.saturating_add(self.resend_every_ns);
            self.group.speak(self.liveness.common().0);
            self.group.resend(agent.lease());
            if self.group.standing() == Standing::Joining {
                let is_complete =
                    self.others.iter().all(|host| self.liveness.is_up(host)) && self.liveness.unheard().is_empty();
                self.waits.observe(now_ns, self.liveness.unheard_processes(), is_complete);
            }
            // Hosts whose process is up ask each other for a first packet.
            for host in self.liveness.unheard().iter() {
                port.begin(host, true);
            }
        }
        self.send(agent, port);
    }

    /// When the next turn is due even if nothing comes.
    pub fn due_ns(&mut self) -> u64 {
        // A member that is alone has decided its proposal already, and no answer would come.
        let has_decided = std::mem::take(&mut self.has_proposed) && self.group.is_alone();
        if has_decided || self.has_more_events { 0 } else { self.resend_ns }
    }

    /// After waiting: takes events of the agent (if `has_events`) and packets (if `has_packets`). Events go
    /// first, as the group requires: if there are more than [`EVENTS_PER_TURN`], the packets wait for a turn
    /// that has taken all of them.
    ///
    /// # Errors
    /// The agent's.
    pub fn after_wait<A: Agent>(
        &mut self,
        agent: &mut A,
        port: &mut impl Port,
        has_events: bool,
        has_packets: bool,
    ) -> Result<(), A::Error> {
        if has_events || self.has_more_events {
            self.take_events(agent)?;
        }
        if has_packets && (!self.has_more_events || planted::is(Planted::TakesPacketsFirst)) {
            self.receive(agent, port);
        }
        Ok(())
    }

    /// At the end of a turn, once there was time to store the view that the group was founded with.
    pub fn end_turn(&mut self, agent: &mut impl Agent, port: &mut impl Port) {
        if !self.leads() {
            // Others wait for these messages. A leader's messages go together with what its user proposes
            // next.
            self.send(agent, port);
        }
    }

    /// Whether this member was excluded, and all events of the agent were taken: time for [`Core::rejoin`].
    pub fn is_excluded(&self) -> bool {
        self.group.standing() == Standing::Excluded && !self.has_more_events
    }

    /// Joins the group again, as another incarnation, which is stored, and as another process. Which
    /// processes are up has to be reported anew ([`Core::watch_found`]).
    ///
    /// # Errors
    /// [`group::GroupError::Incarnation`]; nothing has changed.
    pub fn rejoin(&mut self, incarnation: u32) -> Result<(), group::GroupError> {
        self.group.rejoin(incarnation)?;
        self.liveness.reset();
        self.waits = Waits::default();
        Ok(())
    }

    fn take_events<A: Agent>(&mut self, agent: &mut A) -> Result<(), A::Error> {
        self.has_more_events = true;
        for _ in 0..EVENTS_PER_TURN {
            let Some(event) = agent.poll_event()? else {
                self.has_more_events = false;
                break;
            };
            if let Event::Piggyback { evidence, bytes, .. } = &event {
                self.receive_broadcast(agent, evidence.host_id, evidence.incarnation, bytes);
                continue;
            }
            if !self.liveness.handle_event(&event, &mut self.group) {
                self.group.excluded();
            }
        }
        // What new watches find is later than all events.
        if !self.has_more_events && self.liveness.take_lost_events() {
            // An excluded member watches anew when it comes back. Now it would ask a new agent, which has not
            // heard yet which processes are up: live members would be taken for dead.
            if self.group.standing() == Standing::Excluded && !planted::is(Planted::AsksTheNewAgent) {
                return Ok(());
            }
            for host in self.others.iter() {
                let up = agent.watch_again(host)?;
                self.watch_found(host, up);
            }
        }
        Ok(())
    }

    /// To be called before anything is received from others.
    fn report_hearers(&mut self, agent: &impl Agent) {
        self.group.heard_by(self.others.iter().filter(|host| agent.is_heard_by(*host)).collect());
        self.group.unsure_of(self.liveness.unheard());
    }

    /// A heartbeat has brought a datagram from a host's process.
    fn receive_broadcast(&mut self, agent: &impl Agent, host: HostId, process: u32, datagram: &[u8]) {
        self.report_hearers(agent);
        if !self.liveness.is_member(host, process) {
            self.counters.packets_of_strangers += 1;
        } else if let Err(why) = self.group.receive(host, datagram) {
            self.counters.datagrams_refused += 1;
            self.refused = Some((host, why));
        }
    }

    fn receive(&mut self, agent: &impl Agent, port: &mut impl Port) {
        self.report_hearers(agent);
        let Self { group, liveness, counters, refused, differing, .. } = self;
        let mut asking = HostSet::EMPTY;
        port.receive(|opened| {
            let Ok(Opened { sender, spoken, asks, datagrams }) = opened else {
                counters.packets_refused += 1;
                return;
            };
            if !liveness.note_packet(sender, spoken, group) {
                counters.packets_of_strangers += 1;
                return;
            }
            if asks {
                asking.insert(sender.host);
            }
            for datagram in datagrams {
                match group.receive(sender.host, datagram) {
                    // It may have been started with other settings meanwhile.
                    Ok(()) => differing.remove(sender.host),
                    Err(why) => {
                        if matches!(why, DatagramError::OtherGroup { .. }) {
                            differing.insert(sender.host);
                        }
                        counters.datagrams_refused += 1;
                        *refused = Some((sender.host, why));
                    }
                }
            }
        });
        for host in asking.iter() {
            port.begin(host, false);
        }
    }

    /// Sends all messages of the group.
    pub fn send(&mut self, agent: &mut impl Agent, port: &mut impl Port) {
        let Self { group, liveness, datagram, counters, .. } = self;
        let plane = |host| liveness.plane(host);
        if group.poll_broadcast(datagram) {
            counters.broadcasts_sent += 1;
            if !agent.piggyback(datagram) {
                counters.broadcasts_declined += 1;
            }
        }
        while let Some(to) = group.poll_transmit(datagram) {
            let to: HostSet = to.iter().filter(|host| liveness.is_up(*host)).collect();
            if Group::<P>::is_for_all(datagram) {
                port.push(to, datagram, &plane);
                continue;
            }
            for host in to.iter() {
                group.address(datagram, host);
                port.push(HostSet::only(host), datagram, &plane);
            }
        }
        port.flush(&plane);
    }

    /// The user has proposed something.
    pub fn proposed(&mut self) {
        self.has_proposed = true;
    }

    /// The view of the group, if this host has to store that there is a group and has not yet. Nothing
    /// follows from the view before [`Core::recorded`] is called.
    pub fn poll_record(&mut self, is_founded: bool) -> Option<&View> {
        if self.group.poll_record().is_some() {
            return self.group.poll_record();
        }
        (self.group.standing() == Standing::Member && !is_founded).then(|| self.group.view()).flatten()
    }

    /// The view of [`Core::poll_record`] is stored.
    pub fn recorded(&mut self) {
        self.group.recorded();
    }

    pub fn leads(&self) -> bool {
        self.group.leader() == Some(self.me)
    }
}

#[cfg(test)]
mod tests;
