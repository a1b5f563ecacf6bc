// SPDX-License-Identifier: Apache-2.0
//! What a member does, in which order, without its host: the agent is an [`Agent`], the network a [`Port`], time is given.
//!
//! [`crate::Member`] runs it on a real host, the simulator in a seeded world.

use fide_agreement::{
    Group, HostSet, Lease, Standing, Start, View,
    group::{self, DatagramError},
    planted::{self, Planted},
};
use fide_client::Event;

use crate::{
    Counters,
    ears::Ears,
    packet::{Opened, PacketError},
    waits::Waits,
};

/// Events of the agent that are taken in one turn; the next one begins at once.
pub const EVENTS_PER_TURN: usize = 256;

/// What a member asks its host's agent.
pub trait Agent {
    type Error;

    /// The next event, in the agent's order.
    ///
    /// # Errors
    /// The agent's memory is damaged.
    fn poll_event(&mut self) -> Result<Option<Event>, Self::Error>;

    /// Until when this process may act, and what time it is.
    fn lease(&self) -> Lease;

    /// Whether that host has said lately that it hears this one.
    fn is_heard_by(&self, host: u16) -> bool;

    /// Leaves a message for the next heartbeat; false if there is no room for it.
    fn piggyback(&mut self, message: &[u8]) -> bool;

    /// Ends the watch on the member of that host and begins another; the process that is up.
    ///
    /// # Errors
    /// The agent refuses, or is gone.
    fn watch_again(&mut self, host: u16) -> Result<Option<u32>, Self::Error>;
}

/// Packets to and from the other members.
pub trait Port {
    /// Hands on what has come, up to a bound.
    fn receive(&mut self, each: impl FnMut(Result<Opened<'_>, PacketError>));

    /// Puts a datagram into packets for some hosts. `plane`: by which a host is reached.
    fn push(&mut self, to: HostSet, datagram: &[u8], plane: &dyn Fn(u16) -> usize);

    /// A packet for a host that says who sends it, if nothing else, and may ask for one.
    fn begin(&mut self, to: u16, asks: bool);

    /// Sends what there is.
    fn flush(&mut self, plane: &dyn Fn(u16) -> usize);
}

/// A member but for its host.
#[derive(Debug, Clone)]
pub struct Core<P: Start> {
    pub group: Group<P>,
    pub(crate) ears: Ears,
    pub(crate) waits: Waits,
    me: u16,
    /// All that may be in the group, but for this one.
    others: HostSet,
    resend_ns: u64,
    resend_every_ns: u64,
    /// The agent may have told more than was taken: no packet is taken before it is.
    behind: bool,
    /// Something was proposed since the last wait.
    proposed: bool,
    datagram: Vec<u8>,
    pub counters: Counters,
    /// The last datagram that the group did not take, and why.
    pub(crate) refused: Option<(u16, DatagramError)>,
}

impl<P: Start> Core<P> {
    /// `is_founded`: this host remembers that there is a group.
    ///
    /// # Errors
    /// [`group::GroupError`].
    pub fn new(
        config: group::Config<P::Setting>,
        is_founded: bool,
        resend_every_ns: u64,
    ) -> Result<Self, group::GroupError> {
        let (me, others) = (config.me, config.hosts.minus(HostSet::from_iter([config.me])));
        Ok(Self {
            group: if is_founded { Group::join(config)? } else { Group::form(config)? },
            ears: Ears::default(),
            waits: Waits::default(),
            me,
            others,
            resend_ns: 0,
            resend_every_ns,
            behind: false,
            proposed: false,
            datagram: Vec::new(),
            counters: Counters::default(),
            refused: None,
        })
    }

    /// The hosts whose members are to be watched.
    pub fn others(&self) -> HostSet {
        self.others
    }

    /// The process of another member's host that a new watch has found up.
    pub fn now_up(&mut self, host: u16, process: Option<u32>) {
        self.ears.now_up(host, process, &mut self.group);
    }

    /// What comes before waiting: what is due is sent again, and all that is for others sent.
    pub fn before(&mut self, now_ns: u64, agent: &mut impl Agent, port: &mut impl Port) {
        // While the user has been told all: who leads lets nobody in otherwise, and under load more is decided with each packet.
        if now_ns >= self.resend_ns {
            self.resend_ns = now_ns.saturating_add(self.resend_every_ns);
            self.group.resend(agent.lease());
            if self.group.standing() == Standing::Joining {
                let misses = self.others.iter().any(|host| !self.ears.is_up(host)) || !self.ears.unknown().is_empty();
                self.waits.look(now_ns, self.ears.silent(), !misses);
            }
            // Who is up, and has said nothing yet.
            for host in self.ears.unknown().iter() {
                port.begin(host, true);
            }
        }
        self.send(agent, port);
    }

    /// When it has to go on though nothing has come.
    pub fn due_ns(&mut self) -> u64 {
        // Where nobody is left to answer, nothing would come.
        let decided = std::mem::take(&mut self.proposed) && self.group.is_alone();
        if decided || self.behind { 0 } else { self.resend_ns }
    }

    /// What comes after waiting: the agent may have told something, and packets may have come. What the agent has told goes first, as
    /// the group asks for: where it has told more than [`EVENTS_PER_TURN`] the packets wait for a turn that has taken all of it.
    ///
    /// # Errors
    /// The agent's.
    pub fn after<A: Agent>(
        &mut self,
        agent: &mut A,
        port: &mut impl Port,
        told: bool,
        came: bool,
    ) -> Result<(), A::Error> {
        if told || self.behind {
            self.hear(agent)?;
        }
        if came && (!self.behind || planted::is(Planted::TakesPacketsFirst)) {
            self.receive(agent, port);
        }
        Ok(())
    }

    /// What follows once there was time to store the view that the group was founded with.
    pub fn last(&mut self, agent: &mut impl Agent, port: &mut impl Port) {
        if !self.leads() {
            // Others wait for it. A leader's words go with what its user proposes next.
            self.send(agent, port);
        }
    }

    /// The others go on without this member, or all were excluded, and all that the agent has told was heard: time for [`Core::rejoin`].
    pub fn is_excluded(&self) -> bool {
        self.group.standing() == Standing::Excluded && !self.behind
    }

    /// Wants to be in again, as another incarnation of the member, which is stored, and as another process. Who is up has to be told anew
    /// ([`Core::now_up`]).
    ///
    /// # Errors
    /// [`group::GroupError::Incarnation`]; nothing has changed.
    pub fn rejoin(&mut self, incarnation: u32) -> Result<(), group::GroupError> {
        self.group.rejoin(incarnation)?;
        self.ears.begin_anew();
        self.waits = Waits::default();
        Ok(())
    }

    fn hear<A: Agent>(&mut self, agent: &mut A) -> Result<(), A::Error> {
        self.behind = true;
        for _ in 0..EVENTS_PER_TURN {
            let Some(event) = agent.poll_event()? else {
                self.behind = false;
                break;
            };
            if let Event::Piggyback { evidence, bytes, .. } = &event {
                self.broadcast(agent, evidence.host_id, evidence.incarnation, bytes);
                continue;
            }
            if !self.ears.told(&event, &mut self.group) {
                self.group.excluded();
            }
        }
        // What the new watches find is later than all that was told.
        if !self.behind && std::mem::take(&mut self.ears.lost_events) {
            // Who is out watches anew when it comes back. A new agent has not heard yet who is up: that would be taken for their deaths, of
            // members that live.
            if self.group.standing() == Standing::Excluded && !planted::is(Planted::AsksTheNewAgent) {
                return Ok(());
            }
            for host in self.others.iter() {
                let up = agent.watch_again(host)?;
                self.now_up(host, up);
            }
        }
        Ok(())
    }

    /// Before anything of others is received.
    fn meet(&mut self, agent: &impl Agent) {
        self.group.heard_by(self.others.iter().filter(|host| agent.is_heard_by(*host)).collect());
        self.group.unsure_of(self.ears.unknown());
    }

    /// A heartbeat has brought this, of a process of that host.
    fn broadcast(&mut self, agent: &impl Agent, host: u16, process: u32, datagram: &[u8]) {
        self.meet(agent);
        if !self.ears.is_member(host, process) {
            self.counters.packets_of_strangers += 1;
        } else if let Err(why) = self.group.receive(host, datagram) {
            self.counters.datagrams_refused += 1;
            self.refused = Some((host, why));
        }
    }

    fn receive(&mut self, agent: &impl Agent, port: &mut impl Port) {
        self.meet(agent);
        let Self { group, ears, counters, refused, .. } = self;
        let mut asking = HostSet::EMPTY;
        port.receive(|opened| {
            let Ok(Opened { sender, asks, datagrams }) = opened else {
                counters.packets_refused += 1;
                return;
            };
            if !ears.heard(sender, group) {
                counters.packets_of_strangers += 1;
                return;
            }
            if asks {
                asking.insert(sender.host);
            }
            for datagram in datagrams {
                if let Err(why) = group.receive(sender.host, datagram) {
                    counters.datagrams_refused += 1;
                    *refused = Some((sender.host, why));
                }
            }
        });
        for host in asking.iter() {
            port.begin(host, false);
        }
    }

    /// What the group has for others, in packets, on their way.
    fn send(&mut self, agent: &mut impl Agent, port: &mut impl Port) {
        let Self { group, ears, datagram, counters, .. } = self;
        let plane = |host| ears.plane(host);
        if group.poll_broadcast(datagram) {
            counters.broadcasts_sent += 1;
            counters.broadcasts_declined += u64::from(!agent.piggyback(datagram));
        }
        while let Some(to) = group.poll_transmit(datagram) {
            let to: HostSet = to.iter().filter(|host| ears.is_up(*host)).collect();
            if Group::<P>::is_for_all(datagram) {
                port.push(to, datagram, &plane);
                continue;
            }
            for host in to.iter() {
                group.address(datagram, host);
                port.push(HostSet::from_iter([host]), datagram, &plane);
            }
        }
        port.flush(&plane);
    }

    /// The user has proposed something.
    pub fn proposed(&mut self) {
        self.proposed = true;
    }

    /// The view that there is, where this host has to remember it before anything follows from it, and does not yet. To be followed by
    /// [`Core::recorded`].
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
