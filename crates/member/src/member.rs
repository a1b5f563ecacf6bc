// SPDX-License-Identifier: Apache-2.0
//! A member: what it is fed, in which order, and what it sends.
//!
//! ```text
//!  agent ──► ears ──► up, down ─┐
//!  network ──► opener ──────────┼──► group ──► decisions ──► the caller
//!  the caller: propose ─────────┘      └──► trains ──► network
//! ```
//!
//! What the agent has told comes before what has come from the network, as the group asks for.

use std::time::Duration;

use fide_agreement::{
    Decision, Group, HostSet, Identity, Lease, Refused, Standing, Start, View,
    group::{self, DatagramError},
    transfer::{Reason, RoomError},
};
use fide_client::{Client, ConnectOptions, Event, Monitor, MonitorId, Wanted, now_ns, protocol::PeerState};
use rustix::{
    event::{Timespec, epoll},
    fd::OwnedFd,
    io::Errno,
};

use crate::{
    Config, Error,
    ears::Ears,
    packet::{Opened, Opener, Sealer, Sender},
    port::Port,
    record::Record,
};

const TOKEN_CLIENT: u64 = 0;
const TOKEN_PORT: u64 = 1;
const TOKEN_WATCHED: u64 = 2;
/// Events of the agent that are taken in one turn.
const EVENTS_PER_TURN: usize = 256;

/// What a member has counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Packets that bear no tag of the group.
    pub packets_refused: u64,
    /// Packets of processes that are not known to be up (any more, or yet).
    pub packets_of_strangers: u64,
    /// Datagrams that the group did not take: of another view, mostly, which are sent again.
    pub datagrams_refused: u64,
    /// Trains of packets given to the kernel.
    pub trains_sent: u64,
    /// Of these, those that it did not take.
    pub trains_lost: u64,
    /// Messages given to the agent, for a heartbeat.
    pub broadcasts_sent: u64,
    /// Of these, those that found no room: they go as packets, when they are due again.
    pub broadcasts_declined: u64,
}

/// A member of a group, or a host that wants to be one.
#[derive(Debug)]
pub struct Member<P: Start> {
    group: Group<P>,
    client: Client,
    ears: Ears,
    port: Port,
    record: Record,
    sealer: Sealer,
    opener: Opener,
    me: u16,
    /// All that may be in the group, but for this one.
    others: HostSet,
    names: Vec<String>,
    /// Of each other host its process, and the watch on it.
    monitors: Vec<(u16, String, MonitorId)>,
    epoll: OwnedFd,
    resend_ns: u64,
    resend_every_ns: u64,
    /// A descriptor of the caller's was readable.
    watched: bool,
    /// Something was proposed since the last wait.
    proposed: bool,
    datagram: Vec<u8>,
    counters: Counters,
    /// The last datagram that the group did not take, and why.
    refused: Option<(u16, DatagramError)>,
}

impl<P: Start> Member<P> {
    /// Joins with the agent of this host, and begins to found the group, or to join it. [`Member::wait`] does the rest.
    ///
    /// # Errors
    /// [`Error`]: no agent, no such hosts, no port, no record.
    pub fn open(config: Config<P::Setting>, options: ConnectOptions) -> Result<Self, Error> {
        let mut client = Client::connect(options)?;
        let hello = client.agent().clone();
        if hello.members.is_empty() {
            return Err(Error::OldAgent);
        }
        let hosts = ids(&config.hosts, &hello)?;
        let me = hello.host_id;
        let record = Record::begin(&config.state_dir, &config.group)?;
        let incarnation = record.incarnation();
        let group_config = group::Config {
            group: group::group_of(&config.group, hosts, &config.setting),
            me,
            incarnation,
            hosts,
            setting: config.setting,
            tail_max: config.tail_max,
            transfer: config.transfer(),
        };
        let mut group = if record.is_founded() { Group::join(group_config)? } else { Group::form(group_config)? };
        let addresses: Vec<_> = hello.members.iter().map(|member| member.addresses.clone()).collect();
        let port = Port::open(me, &addresses, config.port)?;
        let names: Vec<String> = hello.members.iter().map(|member| member.name.clone()).collect();

        let joined = client.join(&config.group)?;
        let need = match P::broadcast_max(&config.setting) {
            0 => 0,
            message => group::PREFIX_LEN + message,
        };
        if need > joined.pbsize.into() {
            return Err(Error::Heartbeat { need, granted: joined.pbsize });
        }
        let mut session = [0; 8];
        rustix::rand::getrandom(&mut session, rustix::rand::GetRandomFlags::empty())
            .map_err(Error::system("getrandom"))?;
        let sender = Sender { host: me, process: joined.incarnation, incarnation };
        let sealer = Sealer::new(&config.key, sender, u64::from_ne_bytes(session));
        let others = hosts.minus(HostSet::from_iter([me]));
        let mut ears = Ears::default();
        let mut monitors = Vec::new();
        for host in others.iter() {
            let target = format!("{}@{}", config.group, names[usize::from(host) - 1]);
            let monitor = client.monitor(&target, Wanted::default())?;
            ears.now_up(host, up(&monitor), &mut group);
            monitors.push((host, target, monitor.id));
        }
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(Error::system("epoll_create"))?;
        let watch = |fd: rustix::fd::BorrowedFd<'_>, token| {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
                .map_err(Error::system("epoll_ctl"))
        };
        watch(client.as_fd(), TOKEN_CLIENT)?;
        port.descriptors().try_for_each(|fd| watch(fd, TOKEN_PORT))?;
        Ok(Self {
            group,
            client,
            ears,
            port,
            record,
            sealer,
            opener: Opener::new(config.key),
            me,
            others,
            names,
            monitors,
            epoll,
            resend_ns: 0,
            resend_every_ns: u64::try_from(config.resend.as_nanos()).unwrap_or(u64::MAX).max(1),
            watched: false,
            proposed: false,
            datagram: Vec::new(),
            counters: Counters::default(),
            refused: None,
        })
    }

    /// [`Member::wait`] also ends when this descriptor is readable, or has ended ([`Member::take_watched`]). It has to stay open as
    /// long as this member, or is forgotten.
    ///
    /// # Errors
    /// The kernel does not watch it: a plain file.
    pub fn watch(&self, fd: impl std::os::fd::AsFd) -> Result<(), Error> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(TOKEN_WATCHED), epoll::EventFlags::IN)
            .map_err(Error::system("epoll_ctl"))
    }

    /// Whether a watched descriptor was readable since the last time this was asked.
    pub fn take_watched(&mut self) -> bool {
        std::mem::take(&mut self.watched)
    }

    /// Sends what is to be sent, then waits: until something has come, `timeout` is over (`None`: for ever), or a signal was
    /// handled. To be called again and again; decisions are polled between two calls.
    ///
    /// # Errors
    /// [`Error`]: the record could not be stored, or the agent's memory is damaged.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        let now = now_ns();
        // While the user has been told all: who leads lets nobody in otherwise, and under load more is decided with each packet.
        if now >= self.resend_ns {
            self.resend_ns = now.saturating_add(self.resend_every_ns);
            let lease = self.lease();
            self.group.resend(lease);
            // Who is up, and has said nothing yet.
            for host in self.ears.unknown().iter() {
                self.port.begin(host, &mut self.sealer, true);
            }
        }
        self.send();
        let due = timeout
            .map_or(u64::MAX, |timeout| now.saturating_add(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX)));
        // Where nobody is left to answer, nothing would come.
        let decided = std::mem::take(&mut self.proposed) && self.group.is_alone();
        let sleep_ns = if decided { 0 } else { self.resend_ns.min(due).saturating_sub(now) };
        let (told, came) = self.look(sleep_ns)?;
        if told {
            self.hear()?;
        }
        if came {
            self.receive();
        }
        self.store()?;
        if let Some(to) = self.port.too_long {
            return Err(Error::TooLong { to });
        }
        if !self.leads() {
            // Others wait for it. A leader's words go with what its user proposes next.
            self.send();
        }
        Ok(())
    }

    /// Whether the agent has told something, and whether packets have come.
    fn look(&mut self, sleep_ns: u64) -> Result<(bool, bool), Error> {
        let none = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut ready = [none; 4];
        let timeout = Timespec {
            tv_sec: i64::try_from(sleep_ns / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: (sleep_ns % 1_000_000_000).cast_signed(),
        };
        let count = match epoll::wait(&self.epoll, &mut ready, Some(&timeout)) {
            Ok(count) => count,
            Err(Errno::INTR) => 0,
            Err(errno) => return Err(Error::system("epoll_wait")(errno)),
        };
        let is = |token| ready[..count].iter().any(|event| event.data.u64() == token);
        self.watched |= is(TOKEN_WATCHED);
        Ok((is(TOKEN_CLIENT), is(TOKEN_PORT)))
    }

    fn hear(&mut self) -> Result<(), Error> {
        for _ in 0..EVENTS_PER_TURN {
            let Some(event) = self.client.poll_event()? else { break };
            if let Event::Piggyback { evidence, bytes, .. } = &event {
                self.broadcast(evidence.host_id, evidence.incarnation, bytes);
                continue;
            }
            if !self.ears.told(&event, &mut self.group) {
                self.group.excluded();
            }
        }
        if std::mem::take(&mut self.ears.lost_events) {
            for (host, target, id) in &mut self.monitors {
                self.client.unmonitor(*id)?;
                let monitor = self.client.monitor(target, Wanted::default())?;
                *id = monitor.id;
                self.ears.now_up(*host, up(&monitor), &mut self.group);
            }
        }
        Ok(())
    }

    /// Before anything of others is received.
    fn meet(&mut self) {
        let table = self.client.table();
        let hears = |host: &u16| table.host(*host).is_some_and(|record| record.hears_us == 1);
        self.group.heard_by(self.others.iter().filter(hears).collect());
        self.group.unsure_of(self.ears.unknown());
    }

    /// A heartbeat has brought this, of a process of that host.
    fn broadcast(&mut self, host: u16, process: u32, datagram: &[u8]) {
        self.meet();
        if !self.ears.is_member(host, process) {
            self.counters.packets_of_strangers += 1;
        } else if let Err(why) = self.group.receive(host, datagram) {
            self.counters.datagrams_refused += 1;
            self.refused = Some((host, why));
        }
    }

    fn receive(&mut self) {
        self.meet();
        let Self { group, ears, port, sealer, opener, counters, refused, .. } = self;
        let mut asking = HostSet::EMPTY;
        port.receive(|packet| {
            let Ok(Opened { sender, asks, datagrams }) = opener.open(packet) else {
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
            port.begin(host, sealer, false);
        }
    }

    /// What the group has for others, in packets, on their way.
    fn send(&mut self) {
        let Self { group, client, ears, port, sealer, datagram, counters, .. } = self;
        let plane = |host| ears.plane(host);
        if group.poll_broadcast(datagram) {
            counters.broadcasts_sent += 1;
            counters.broadcasts_declined += u64::from(client.piggyback(datagram).is_err());
        }
        while let Some(to) = group.poll_transmit(datagram) {
            let to: HostSet = to.iter().filter(|host| ears.is_up(*host)).collect();
            if Group::<P>::is_for_all(datagram) {
                port.push(to, datagram, sealer, &plane);
                continue;
            }
            for host in to.iter() {
                group.address(datagram, host);
                port.push(HostSet::from_iter([host]), datagram, sealer, &plane);
            }
        }
        port.flush(sealer, &plane);
    }

    /// There is a group: that outlives this host before anything follows from it.
    fn store(&mut self) -> Result<(), Error> {
        if let Some(view) = self.group.poll_record() {
            self.record.founded(view)?;
            self.group.recorded();
        } else if self.group.standing() == Standing::Member && !self.record.is_founded() {
            let view = self.group.view().expect("a member is in a view");
            self.record.founded(view)?;
        }
        Ok(())
    }

    fn lease(&self) -> Lease {
        let (table, now_ns) = (self.client.table(), now_ns());
        let until_ns = if table.fenced(now_ns) { 0 } else { table.lease_until_ns() };
        Lease { now_ns, until_ns }
    }

    /// A value for one of the next instances. What is proposed between two calls of [`Member::wait`] goes together.
    ///
    /// # Errors
    /// [`Refused`]; nothing has changed.
    pub fn propose(&mut self, value: &[u8]) -> Result<(), Refused> {
        let lease = self.lease();
        self.proposed = true;
        self.group.propose(lease, value)
    }

    /// Many values, each as [`Member::propose`] takes one, with one look at the lease.
    pub fn propose_with(&mut self, each: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<(), Refused>)) {
        let lease = self.lease();
        self.proposed = true;
        each(&mut |value| self.group.propose(lease, value));
    }

    /// A value of any length up to the limit; it is sent ahead, and decided once all members that live have it.
    ///
    /// # Errors
    /// [`Refused`]; nothing has changed.
    pub fn propose_payload(&mut self, payload: Vec<u8>) -> Result<Identity, Refused> {
        let lease = self.lease();
        self.group.propose_payload(lease, payload)
    }

    /// A payload that a decision names, until the next decision is polled.
    #[must_use]
    pub fn payload(&self, identity: &Identity) -> Option<&[u8]> {
        self.group.payload(identity)
    }

    /// A payload that another member does not take, and why.
    pub fn poll_refused(&mut self) -> Option<(u16, Identity, Reason)> {
        self.group.poll_refused()
    }

    /// The next decision: to be polled until there is none, after each [`Member::wait`].
    pub fn poll_decision(&mut self) -> Option<Decision<'_>> {
        let lease = self.lease();
        self.group.poll_decision(lease)
    }

    /// Whether a question about the state may be answered from here: this member leads, its lease holds, and it has told all that
    /// was ever decided.
    pub fn may_answer(&self) -> bool {
        self.group.may_answer(self.lease())
    }

    /// Takes a member out of the group.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn remove(&mut self, host: u16) -> Result<(), Refused> {
        let lease = self.lease();
        self.group.remove(lease, host)
    }

    /// Whether the user's state is wanted, for somebody who joins.
    #[must_use]
    pub fn wants_state(&self) -> bool {
        self.group.wants_state()
    }

    /// The user's state, after all that was told and nothing else.
    ///
    /// # Errors
    /// It is longer than a payload may be.
    pub fn give_state(&mut self, state: Vec<u8>) -> Result<(), RoomError> {
        self.group.give_state(state)
    }

    /// The state that the user has to put in place of its own, and after which position it is.
    #[must_use]
    pub fn poll_install(&self) -> Option<(u64, &[u8])> {
        self.group.poll_install()
    }

    /// The state of [`Member::poll_install`] is the user's now.
    pub fn installed(&mut self) {
        self.group.installed();
    }

    #[must_use]
    pub fn standing(&self) -> Standing {
        self.group.standing()
    }

    #[must_use]
    pub fn view(&self) -> Option<&View> {
        self.group.view()
    }

    /// The user was told all up to this position.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.group.position()
    }

    /// The host that leads, as far as this member knows.
    #[must_use]
    pub fn leader(&self) -> Option<u16> {
        self.group.leader()
    }

    #[must_use]
    pub fn leads(&self) -> bool {
        self.leader() == Some(self.me)
    }

    /// This host.
    #[must_use]
    pub fn host(&self) -> u16 {
        self.me
    }

    /// A host's name.
    #[must_use]
    pub fn name(&self, host: u16) -> Option<&str> {
        self.names.get(usize::from(host).wrapping_sub(1)).map(String::as_str)
    }

    /// CLOCK_MONOTONIC of when the death was known here that was told last; 0 for none.
    #[must_use]
    pub fn death_ns(&self) -> u64 {
        self.ears.death_ns
    }

    /// What a host that is no member yet waits for, for people; none if it is one.
    #[must_use]
    pub fn waits_for(&self) -> Option<String> {
        if self.standing() != Standing::Joining {
            return None;
        }
        let unknown = self.ears.unknown();
        let silent = self.monitors.iter().filter_map(|(host, target, _)| {
            let name = &self.names[usize::from(*host) - 1];
            match (self.ears.is_up(*host), unknown.contains(*host)) {
                (false, _) => Some(format!("no process {target} is known to run")),
                (true, true) => Some(format!(
                    "{target} runs, and no packet of its has come that bears this group's key ({} others have); do {name} and this \
                     host have the same key and port?",
                    self.counters.packets_refused
                )),
                (true, false) => None,
            }
        });
        let refused = self.refused.as_ref().map(|(host, why)| {
            format!("the last refused of {}: {why}", self.names.get(usize::from(*host) - 1).map_or("?", String::as_str))
        });
        let fenced = self.client.fenced().then(|| "this host has no lease".to_owned());
        let mut all: Vec<String> = fenced.into_iter().chain(silent).chain(refused).collect();
        if all.is_empty() {
            all.push(if self.record.is_founded() {
                "all are there, and none lets this host in yet: if every member has died the group is lost; end all, remove \
                 their records (state_dir), and start them"
                    .to_owned()
            } else {
                "all are there, and not all of them found the group yet: one that remembers a group (its record in state_dir) \
                 only joins one"
                    .to_owned()
            });
        }
        Some(all.join("; "))
    }

    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters { trains_sent: self.port.sent, trains_lost: self.port.lost, ..self.counters }
    }

    /// The connection to the agent. Its events are this member's.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }
}

/// The process that a monitor has found up.
fn up(monitor: &Monitor) -> Option<u32> {
    (monitor.state == PeerState::Alive).then_some(monitor.incarnation)
}

/// Names of hosts as their ids.
fn ids(names: &[String], hello: &fide_client::protocol::HelloOk) -> Result<HostSet, Error> {
    let known: Vec<&str> = hello.members.iter().map(|member| member.name.as_str()).collect();
    let mut hosts = HostSet::EMPTY;
    for name in names {
        let at = known.iter().position(|known| known == name);
        let at = at.ok_or_else(|| Error::UnknownHost { name: name.clone(), known: known.join(", ") })?;
        let id = u16::try_from(at + 1).unwrap_or(u16::MAX);
        if hosts.contains(id) {
            return Err(Error::Twice { name: name.clone() });
        }
        hosts.insert(id);
    }
    if hosts.is_empty() {
        return Err(Error::NoHosts);
    }
    if !hosts.contains(hello.host_id) {
        return Err(Error::NotAMember { name: hello.host.clone(), hosts: names.join(", ") });
    }
    Ok(hosts)
}
