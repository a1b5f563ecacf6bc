// SPDX-License-Identifier: Apache-2.0
//! A member on a host: its descriptors, its agent, its packets and its record.
//!
//! ```text
//!  agent ──► liveness ──► up, down ─┐
//!  network ──► opener ──────────────┼──► group ──► decisions ──► the caller
//!  the caller: propose ─────────────┘      └──► trains ──► network
//! ```
//!
//! Events of the agent are taken before packets, as the group requires ([`crate::core`]).

use std::time::Duration;

use fide_agent_api::protocol::{PeerState, check_name};
use fide_agreement::{
    Decision, HostSet, Identity, Lease, Refused, Standing, Start, View, group,
    transfer::{Reason, RoomError},
};
use fide_client::{Client, ConnectOptions, Event, Joined, Monitor, MonitorId, ProcessId, Wanted, now_ns};
use fide_types::{HostId, host_index};
use fide_wire::Key;
use rustix::{
    event::{Timespec, epoll},
    fd::OwnedFd,
    io::Errno,
};

use crate::{
    Config, Error,
    core::{self, Core},
    durable::{self, Disk},
    packet::{Opened, Opener, PacketError, Sealer, Sender},
    port::Port,
    record::Record,
    spin::Spin,
    versions::Spoken,
};

mod spoken;
mod stored;
mod waiting;

const TOKEN_CLIENT: u64 = 0;
const TOKEN_WATCHED: u64 = 1;
/// Of the first plane's socket; those of the other planes follow.
const TOKEN_PORT: u64 = 2;
/// Between two attempts to join with the agent again, or to store something.
const RETRY_NS: u64 = 20_000_000;

/// What a member has counted since it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Packets without a valid tag of the group.
    pub packets_refused: u64,
    /// Packets of processes that are not known to be up, any more or yet.
    pub packets_of_strangers: u64,
    /// Datagrams that the group refused, mostly as they are of another view; they are sent again.
    pub datagrams_refused: u64,
    /// Trains of packets given to the kernel.
    pub trains_sent: u64,
    /// Trains that the kernel did not take, of those.
    pub trains_lost: u64,
    /// Messages handed to the agent for a heartbeat.
    pub broadcasts_sent: u64,
    /// Messages for which a heartbeat had no room, of those: they are sent as packets when they are due
    /// again.
    pub broadcasts_declined: u64,
}

/// The agent of this host, and the watches on the others.
#[derive(Debug)]
struct Link {
    client: Client,
    process: ProcessId,
    /// Each other host, the name of its process, and the watch on it.
    monitors: Vec<(u16, String, MonitorId)>,
    /// The newest incarnation of this host, if the program has not acknowledged it to the agent yet.
    rejoined: Option<u32>,
}

impl core::Agent for Link {
    type Error = Error;

    fn poll_event(&mut self) -> Result<Option<Event>, Error> {
        loop {
            let Some(event) = self.client.poll_event()? else { return Ok(None) };
            match &event {
                Event::Rejoined { incarnation } => self.rejoined = Some(*incarnation),
                // Events of a watch that was ended.
                Event::Up { monitor, .. } | Event::Piggyback { monitor, .. } if !self.watches(*monitor) => continue,
                Event::Verdict(verdict) if !self.watches(verdict.monitor) => continue,
                _ => {}
            }
            return Ok(Some(event));
        }
    }

    fn lease(&self) -> Lease {
        // The lease of the incarnation that joined, and of no later one: to the others this member is dead
        // then.
        Lease { now_ns: now_ns(), until_ns: self.client.lease_until_ns() }
    }

    fn is_heard_by(&self, host: HostId) -> bool {
        self.client.table().host(host).is_some_and(|record| record.hears_us == 1)
    }

    fn piggyback(&mut self, message: &[u8]) -> bool {
        // At once: the leader waits for all answers, and the others for the leader.
        self.client.piggyback_now(message).is_ok()
    }

    fn watch_again(&mut self, host: HostId) -> Result<Option<u32>, Error> {
        let Some((_, target, id)) = self.monitors.iter_mut().find(|(of, ..)| *of == host) else { return Ok(None) };
        match self.client.unmonitor(*id) {
            Ok(()) | Err(fide_client::Error::Unregistered(_)) => {}
            Err(why) => return Err(why.into()),
        }
        let monitor = self.client.monitor(target, Wanted::default())?;
        *id = monitor.id;
        Ok(up(&monitor))
    }
}

impl Link {
    fn watches(&self, monitor: MonitorId) -> bool {
        self.monitors.iter().any(|(.., id)| *id == monitor)
    }

    /// Joins with the agent again, as another process: this host is another incarnation, which the program
    /// acknowledges.
    fn join_again(&mut self, name: &str) -> Result<Joined, Error> {
        if let Some(incarnation) = self.rejoined.take() {
            // If there is a newer one by now, an event for it follows.
            let _ = self.client.rejoined_acknowledge(incarnation);
        }
        match self.client.quit(self.process) {
            Ok(()) | Err(fide_client::Error::Unregistered(_)) => {}
            Err(why) => return Err(why.into()),
        }
        let joined = self.client.join(name)?;
        self.process = joined.id;
        Ok(joined)
    }
}

/// Sealed packets over UDP.
#[derive(Debug)]
struct Packets {
    port: Port,
    sealer: Sealer,
    opener: Opener,
    /// Bit p: something has come on plane p.
    ready: u8,
}

impl Packets {
    /// Packets have another sender from now on.
    fn seal_as(&mut self, sealer: Sealer) {
        self.port.discard();
        self.sealer = sealer;
    }
}

impl core::Port for Packets {
    fn receive(&mut self, mut each: impl FnMut(Result<Opened<'_>, PacketError>)) {
        let Self { port, opener, ready, .. } = self;
        port.receive(std::mem::take(ready), |packet| each(opener.open(packet)));
    }

    fn push(&mut self, to: HostSet, datagram: &[u8], plane: &dyn Fn(u16) -> usize) {
        self.port.push(to, datagram, &mut self.sealer, plane);
    }

    fn begin(&mut self, to: u16, asks: bool) {
        self.port.begin(to, &mut self.sealer, asks);
    }

    fn flush(&mut self, plane: &dyn Fn(u16) -> usize) {
        self.port.flush(&self.sealer, plane);
    }
}

/// A member of a group, or a host that wants to be one.
#[derive(Debug)]
pub struct Member<P: Start> {
    core: Core<P>,
    link: Link,
    packets: Packets,
    spin: Spin,
    record: Record,
    /// Of a durable member.
    disk: Option<Disk>,
    key: Key,
    spoken: Spoken,
    name: String,
    me: u16,
    names: Vec<String>,
    epoll: OwnedFd,
    /// A watched descriptor of the caller's was readable.
    watched: bool,
    /// When an excluded member tries next to join with the agent again.
    rejoin_ns: u64,
    /// What could not be stored, for people, and when that is tried next.
    unstored: Option<(String, u64)>,
}

impl<P: Start> Member<P> {
    /// Joins with the agent of this host, and begins to found or join the group. [`Member::wait`] does the
    /// rest.
    ///
    /// # Errors
    /// [`Error`]: no agent, no such hosts, no port, no record.
    pub fn open(config: Config<P::Setting>, options: ConnectOptions) -> Result<Self, Error> {
        // Before it is part of a path.
        check_name(&config.group).map_err(fide_client::Error::Name)?;
        let mut client = Client::connect(options)?;
        let hello = client.agent().clone();
        if hello.members.is_empty() {
            return Err(Error::OldAgent);
        }
        let hosts = ids(&config.hosts, &hello)?;
        let me = hello.host_id;
        if config.is_durable && config.payload_max > crate::log::PAYLOAD_MAX {
            return Err(Error::PayloadMax { got: config.payload_max, max: crate::log::PAYLOAD_MAX });
        }
        // Before anything is stored; a group of all hosts could not begin otherwise, without a word.
        let setting = P::start(&config.setting, 1, HostSet::first(hosts.len()));
        setting.map_err(|why| group::GroupError::Setting(why.to_string()))?;
        if !config.is_durable {
            // Before the record takes a number that no disk answers for.
            Disk::refuse(&config.state_dir, &config.group)?;
        }
        let mut record = Record::begin(&config.state_dir, &config.group, config.is_durable)?;
        let number = if config.is_durable {
            group::group_of(&config.group, hosts, &(config.setting, "durable"))
        } else {
            group::group_of(&config.group, hosts, &config.setting)
        };
        let disk = config.is_durable.then(|| {
            let (stored_max, first) = (config.transfer().stored_max, record.incarnation());
            Disk::open(&config.state_dir, &config.group, number, first, config.compact_bytes, stored_max)
        });
        let (disk, found) = disk.transpose()?.unzip();
        // The record may have been lost, and the log not.
        let member = found.as_ref().and_then(|found| found.recalled.member.as_ref());
        if let Some(member) = member.map(|member| member.incarnation).filter(|member| *member >= record.incarnation()) {
            record.next_incarnation(member, record.own().clone())?;
            record.used();
        }
        let incarnation = record.incarnation();
        // A host stores what it is a member of before its record.
        let is_founded = record.is_founded() || found.as_ref().is_some_and(|found| found.recalled.member.is_some());
        let group_config = group::Config {
            group: number,
            me,
            incarnation,
            hosts,
            setting: config.setting,
            tail_max: config.tail_max,
            transfer: config.transfer(),
        };
        let spoken = config.spoken();
        let resend_ns = u64::try_from(config.resend.as_nanos()).unwrap_or(u64::MAX).max(1);
        let mut core = Core::new(group_config, is_founded, resend_ns)?;
        core.set_spoken(spoken);
        if record.is_first() {
            core.group.set_first_process();
        }
        if let Some(found) = found {
            core.group.set_durable();
            core.group.recall(found.recalled, record.own());
        }
        if !is_founded {
            record.may_be_let_in()?;
        }
        let addresses: Vec<_> = hello.members.iter().map(|member| member.addresses.clone()).collect();
        if addresses[host_index(me)].is_empty() {
            return Err(Error::NoNetwork { name: hello.host.clone() });
        }
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
        let sealer = sealer(&config.key, Sender { host: me, process: joined.incarnation, incarnation }, spoken)?;
        let mut monitors = Vec::new();
        for host in core.others().iter() {
            let target = format!("{}@{}", config.group, names[host_index(host)]);
            let monitor = client.monitor(&target, Wanted::default())?;
            core.watch_found(host, up(&monitor));
            monitors.push((host, target, monitor.id));
        }
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(Error::system("epoll_create"))?;
        let watch = |fd: rustix::fd::BorrowedFd<'_>, token| {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
                .map_err(Error::system("epoll_ctl"))
        };
        watch(client.as_fd(), TOKEN_CLIENT)?;
        (TOKEN_PORT..).zip(port.descriptors()).try_for_each(|(token, fd)| watch(fd, token))?;
        Ok(Self {
            core,
            link: Link { client, process: joined.id, monitors, rejoined: None },
            packets: Packets { port, sealer, opener: Opener::new(config.key), ready: 0 },
            spin: Spin::default(),
            record,
            disk,
            key: config.key,
            spoken,
            name: config.group,
            me,
            names,
            epoll,
            watched: false,
            rejoin_ns: 0,
            unstored: None,
        })
    }

    /// Watches a descriptor: [`Member::wait`] also ends when it is readable or at its end
    /// ([`Member::take_watched`]). It has to stay open as long as it is to be watched.
    ///
    /// # Errors
    /// The kernel does not watch it, as it is a plain file.
    pub fn watch(&self, fd: impl std::os::fd::AsFd) -> Result<(), Error> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(TOKEN_WATCHED), epoll::EventFlags::IN)
            .map_err(Error::system("epoll_ctl"))
    }

    /// Whether a watched descriptor was readable since the last call.
    pub fn take_watched(&mut self) -> bool {
        std::mem::take(&mut self.watched)
    }

    /// Sends what has to be sent, then waits until something has come, `timeout` is over (`None`: for ever),
    /// or a signal was handled while it slept. (A signal that comes just before the sleep does not end it,
    /// here as with every such call; a [watched](Member::watch) signalfd always does.) To be called again and
    /// again; decisions are polled between two calls.
    ///
    /// **If the agent of this host ends**, this call goes on without an error. The lease runs out, so that no
    /// decision is delivered and no question may be answered, while [`Member::standing`] and
    /// [`Member::leads`] keep their values. An agent that takes over (`--takeover`) changes nothing else. An
    /// agent that was started anew makes this host another incarnation: the others were notified that this
    /// member is dead. The member keeps its state, joins again as another process, and is
    /// [`Standing::Joining`] until the others have let it in; [`Member::poll_install`] may then have their
    /// state, in place of the user's own. While there is no agent, [`Member::waits_for`] says that this host
    /// has no lease.
    ///
    /// # Errors
    /// [`Error`]: the agent's memory is damaged. A full disk is not an error: a member that cannot store that
    /// there is a group, or the incarnation as which it comes back, keeps its state and tries again
    /// ([`Member::unstored`]).
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        let now = now_ns();
        let Self { core, link, packets, .. } = self;
        core.before_wait(now, link, packets);
        let due = timeout
            .map_or(u64::MAX, |timeout| now.saturating_add(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX)));
        let rejoin_ns = if core.is_excluded() && link.client.is_attached() { self.rejoin_ns } else { u64::MAX };
        // While this member is excluded, or was taken out, there is nothing to store before something else
        // comes.
        let store_ns = match (&self.unstored, core.poll_record(self.record.is_founded())) {
            (Some((_, again_ns)), Some(_)) => *again_ns,
            _ => u64::MAX,
        };
        let disk_ns = self.disk.as_ref().map_or(u64::MAX, Disk::due_ns);
        let sleep_ns = core.due_ns().min(due).min(rejoin_ns).min(store_ns).min(disk_ns).saturating_sub(now);
        let (has_events, has_packets) = self.poll_fds(sleep_ns)?;
        self.core.after_wait(&mut self.link, &mut self.packets, has_events, has_packets)?;
        if self.core.is_excluded() && self.link.client.is_attached() && now >= self.rejoin_ns {
            self.rejoin_ns = now.saturating_add(RETRY_NS);
            self.rejoin()?;
        }
        self.store_founded(now)?;
        self.store(now)?;
        if let Some(to) = self.packets.port.too_long {
            return Err(Error::TooLong { to });
        }
        self.core.end_turn(&mut self.link, &mut self.packets);
        Ok(())
    }

    /// Stores that there is a group, before anything follows from it. The founder and the other members of
    /// the first view begin once it is stored, and the others wait for that. A host that was let in is a
    /// member meanwhile: the founders have stored the group.
    fn store_founded(&mut self, now_ns: u64) -> Result<(), Error> {
        if self.core.poll_record(self.record.is_founded()).is_none() {
            // While the member is excluded, the message about its incarnation stays.
            self.unstored.take_if(|_| !self.core.is_excluded());
            return Ok(());
        }
        if self.unstored.as_ref().is_some_and(|(_, again_ns)| now_ns < *again_ns) {
            return Ok(());
        }
        let first = self.disk.as_mut().map_or(Ok(()), |disk| disk.store_first(&self.core));
        let what = "this host cannot store that there is a group; make room there, it tries again";
        let why = match first {
            Err(why) if why.is_full() => Err(why.to_string()),
            Err(why) => return Err(why.into()),
            Ok(()) => match self.core.poll_record(self.record.is_founded()) {
                Some(view) => self.record.store_founded(view).map_err(|why| why.to_string()),
                None => Ok(()),
            },
        };
        match why {
            Ok(()) => {
                self.unstored = None;
                self.core.recorded();
            }
            Err(why) => self.unstored = Some((format!("{what}: {why}"), now_ns.saturating_add(RETRY_NS))),
        }
        Ok(())
    }

    /// This host was excluded, or its agent was started anew, or others know its incarnation to be dead: the
    /// member goes on as another incarnation, keeps its state, and asks to be let in.
    fn rejoin(&mut self) -> Result<(), Error> {
        // Stored before anybody hears of it. If that fails, the member goes on: the state that it keeps is
        // worth more than an error.
        let (floor, own) = (self.core.group.incarnation_floor(), self.core.group.own_incarnations());
        let incarnation = match self.record.next_incarnation(floor, own) {
            Ok(incarnation) => incarnation,
            Err(why) => {
                let what = "this host was excluded, and cannot store as which incarnation it comes back; make room there, it tries again";
                self.unstored = Some((format!("{what}: {why}"), self.rejoin_ns));
                return Ok(());
            }
        };
        self.unstored = None;
        // The agent may just be ending, or may still have the name: tries again later.
        let Ok(joined) = self.link.join_again(&self.name) else { return Ok(()) };
        let mut up = Vec::new();
        for host in self.core.others().iter() {
            let Ok(process) = core::Agent::watch_again(&mut self.link, host) else { return Ok(()) };
            up.push((host, process));
        }
        let sender = Sender { host: self.me, process: joined.incarnation, incarnation };
        self.packets.seal_as(sealer(&self.key, sender, self.spoken)?);
        self.core.rejoin(incarnation)?;
        self.record.used();
        up.into_iter().for_each(|(host, process)| self.core.watch_found(host, process));
        self.rejoin_ns = 0;
        Ok(())
    }

    /// Waits for a descriptor. Whether the agent has events, and whether packets have come.
    fn poll_fds(&mut self, sleep_ns: u64) -> Result<(bool, bool), Error> {
        let none = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut ready = [none; 4];
        let polled = self.spin.poll(sleep_ns, self.core.group.awaits_answer(), || {
            let count = poll(&self.epoll, &mut ready, 0)?;
            if count == 0 {
                rustix::thread::sched_yield();
            }
            Ok::<_, Error>(count)
        })?;
        let count = if polled.ready > 0 { polled.ready } else { poll(&self.epoll, &mut ready, polled.left_ns)? };
        let is = |token| ready[..count].iter().any(|event| event.data.u64() == token);
        self.watched |= is(TOKEN_WATCHED);
        let planes = ready[..count].iter().filter_map(|event| event.data.u64().checked_sub(TOKEN_PORT));
        self.packets.ready |= planes.fold(0, |planes, plane| planes | 1 << plane);
        Ok((is(TOKEN_CLIENT), self.packets.ready != 0))
    }

    fn lease(&self) -> Lease {
        core::Agent::lease(&self.link)
    }

    /// Proposes a value for one of the next instances. Values that are proposed between two calls of
    /// [`Member::wait`] are sent together.
    ///
    /// # Errors
    /// [`Refused`]; nothing has changed.
    pub fn propose(&mut self, value: &[u8]) -> Result<(), Refused> {
        let lease = self.lease();
        self.core.proposed();
        self.core.group.propose(lease, value)
    }

    /// Proposes many values, each as [`Member::propose`] does, with one check of the lease.
    pub fn propose_with(&mut self, each: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<(), Refused>)) {
        let lease = self.lease();
        self.core.proposed();
        each(&mut |value| self.core.group.propose(lease, value));
    }

    /// Proposes a value of any length up to the limit. It is sent ahead as a payload, and decided once all
    /// live members store it.
    ///
    /// # Errors
    /// [`Refused`]; nothing has changed.
    pub fn propose_payload(&mut self, payload: Vec<u8>) -> Result<Identity, Refused> {
        let lease = self.lease();
        self.core.group.propose_payload(lease, payload)
    }

    /// The payload that a decision names, until the next decision is polled.
    #[must_use]
    pub fn payload(&self, identity: &Identity) -> Option<&[u8]> {
        let replayed = self.disk.as_ref().and_then(|disk| disk.payload(identity));
        replayed.or_else(|| self.core.group.payload(identity))
    }

    /// The next payload that another member refuses, and why.
    pub fn poll_refused(&mut self) -> Option<(u16, Identity, Reason)> {
        self.core.group.poll_refused()
    }

    /// The next decision: to be polled until there is none, after each [`Member::wait`].
    ///
    /// At a durable member whose group was founded again from its disk, these are first the decisions on disk.
    /// None comes while they cannot be read; [`Member::unstored`] says why.
    pub fn poll_decision(&mut self) -> Option<Decision<'_>> {
        let lease = self.lease();
        let Self { core, disk, unstored, .. } = self;
        if let Some(disk) = disk.as_mut().filter(|disk| disk.is_replaying()) {
            match disk.next() {
                Ok(true) => {}
                Ok(false) if disk.is_replaying() => return None,
                Ok(false) => return core.group.poll_decision(lease),
                Err(why) => {
                    *unstored = Some((format!("this host cannot read the group's log: {why}"), u64::MAX));
                    return None;
                }
            }
            return disk.last().map(|(instance, value)| Decision { instance, value });
        }
        core.group.poll_decision(lease)
    }

    /// Whether a question about the state may be answered from here: this member leads, its lease holds, and
    /// it has delivered everything that was ever decided.
    pub fn may_answer(&self) -> bool {
        !self.is_replaying() && self.core.group.may_answer(self.lease())
    }

    /// The position up to which the log may be decided anywhere: a question about the state that is asked now
    /// may be answered at **every** member, once everything up to that position is delivered and applied there
    /// and if its [`Member::standing`] is [`Standing::Member`] then ([`fide_agreement::Group::may_be_decided`]
    /// has the argument). None: this member may not answer.
    #[must_use]
    pub fn may_be_decided(&self) -> Option<u64> {
        self.core.group.may_be_decided(self.lease()).filter(|_| !self.is_replaying())
    }

    /// Takes a member out of the group.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn remove(&mut self, host: HostId) -> Result<(), Refused> {
        let lease = self.lease();
        self.core.group.remove(lease, host)
    }

    /// Hands the lead over to another member, after everything that was proposed here
    /// ([`fide_agreement::Group::hand_over`]). It is done when [`Member::leads`] is false.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn hand_over(&mut self, host: HostId) -> Result<(), Refused> {
        let lease = self.lease();
        self.core.group.hand_over(lease, host)
    }

    /// Whether [`Member::hand_over`] would begin now.
    ///
    /// # Errors
    /// [`Refused`]: why not.
    pub fn may_hand_over(&self, host: HostId) -> Result<(), Refused> {
        self.core.group.may_hand_over(self.lease(), host)
    }

    /// Whether a host is another member of the view that is not known to have crashed.
    #[must_use]
    pub fn lives(&self, host: HostId) -> bool {
        self.core.group.others().contains(host)
    }

    /// Whether the user's state is wanted, for a host that joins. To be asked once [`Member::poll_decision`]
    /// has no more decisions, and all of them are in the state.
    #[must_use]
    pub fn wants_state(&self) -> bool {
        self.core.group.wants_state() && !self.is_replaying()
    }

    /// The user's state, after every decision that was polled and nothing else.
    ///
    /// # Errors
    /// The state is longer than a payload may be, or there is no room for it.
    pub fn give_state(&mut self, state: Vec<u8>) -> Result<(), RoomError> {
        self.core.group.give_state(state)
    }

    /// The state that the user has to put in place of its own, and its position. From this call on it counts
    /// as the user's: the decisions that follow are those after that position.
    ///
    /// To be called after each [`Member::wait`], before or after the decisions are polled: there is never a
    /// state and a decision at once, as a host that has to take over a state is not a member yet.
    ///
    /// A durable member also hands out the state on its own disk in this way, when its group was founded again from
    /// that.
    pub fn poll_install(&mut self) -> Option<(u64, Vec<u8>)> {
        if let Some(stored) = self.disk.as_ref().and_then(Disk::base) {
            return match durable::read_base(&stored.path) {
                Ok(state) => self.poll_stored_state().map(|stored| (stored.position, state)),
                Err(why) => {
                    self.unstored = Some((format!("this host cannot read its stored state: {why}"), u64::MAX));
                    None
                }
            };
        }
        self.core.group.poll_install()?;
        self.may_be_let_in();
        let (position, state) = self.core.group.take_install()?;
        if let Some(disk) = &mut self.disk {
            disk.replaced(position);
            disk.store_base(position, state.clone());
        }
        Some((position, state))
    }

    /// The state of [`Member::poll_install`], and its position, to look at: the user may fetch a longer state
    /// with it, in its own way, and say so with [`Member::installed_at`]. The offer is another one, or none,
    /// after each [`Member::wait`].
    #[must_use]
    pub fn offered_state(&self) -> Option<(u64, &[u8])> {
        self.core.group.poll_install()
    }

    /// The user has replaced its state by the one after the decisions up to `position`, which is at least
    /// that of [`Member::offered_state`]. False, and nothing has changed, if there is no such offer.
    pub fn installed_at(&mut self, position: u64) -> bool {
        self.may_be_let_in();
        let is_installed = self.core.group.installed_at(position);
        if let Some(disk) = self.disk.as_mut().filter(|_| is_installed) {
            disk.replaced(position);
        }
        is_installed
    }

    /// With the state that it was offered this host asks to be let in: a durable one stores that before.
    fn may_be_let_in(&mut self) {
        // On a full disk this host does not answer for the present incarnation when it comes back. Others may wait then,
        // and nothing is lost.
        let _ = self.record.may_be_let_in();
    }

    /// The user begins to replace its state by the one of [`Member::offered_state`], and has none until that is
    /// done: from now on the group does not count on its former state.
    pub fn state_dropped(&mut self) {
        self.core.group.state_dropped();
    }

    /// The user cannot have the state of [`Member::offered_state`], for example as the host that it names is dead:
    /// another one is asked for. Does nothing if there is no offer.
    pub fn decline_offer(&mut self) {
        self.core.group.decline_offer();
    }

    /// Whether a decision needs another member: one that is not known to have crashed.
    #[must_use]
    pub fn has_others(&self) -> bool {
        !self.core.group.others().is_empty()
    }

    /// Whether this host has a record that it was in the group before.
    #[must_use]
    pub fn was_member(&self) -> bool {
        self.record.is_founded()
    }

    /// What this member is to its group, as far as it knows. The lease is not checked: on a host that is
    /// fenced, or was excluded and has not heard of it yet, this stays [`Standing::Member`]. Before any act
    /// that others may see, ask [`Member::may_answer`] (for an answer from the state), or
    /// [`fide_client::Client::may_act`] of [`Member::client`] (for any other act).
    #[must_use]
    pub fn standing(&self) -> Standing {
        match self.core.group.standing() {
            // Not for long: it is about to join again.
            Standing::Excluded => Standing::Joining,
            standing => standing,
        }
    }

    #[must_use]
    pub fn view(&self) -> Option<&View> {
        self.core.group.view()
    }

    /// Decisions up to this position were delivered to the user.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.disk.as_ref().and_then(Disk::position).unwrap_or_else(|| self.core.group.position())
    }

    /// The host that leads, as far as this member knows ([`Member::leads`]).
    #[must_use]
    pub fn leader(&self) -> Option<u16> {
        self.core.group.leader()
    }

    /// Whether this host leads, as far as this member knows. Like [`Member::standing`] this stays true on a
    /// host that is fenced or excluded, while another one leads already. It says where to propose;
    /// [`Member::may_answer`] says whether a question may be answered. [`Member::propose`] checks the lease
    /// itself.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.core.leads()
    }

    /// The id of this host.
    #[must_use]
    pub fn host(&self) -> u16 {
        self.me
    }

    /// The name of a host.
    #[must_use]
    pub fn name(&self, host: HostId) -> Option<&str> {
        self.names.get(usize::from(host).wrapping_sub(1)).map(String::as_str)
    }

    /// CLOCK_MONOTONIC of when the last reported death became known here; 0 for none.
    #[must_use]
    pub fn death_ns(&self) -> u64 {
        self.core.liveness.death_ns()
    }

    /// What this member could not store, and why, for people; mostly a full disk. It tries again until that
    /// is stored.
    #[must_use]
    pub fn unstored(&self) -> Option<&str> {
        let disk = self.disk.as_ref().and_then(Disk::unstored);
        self.unstored.as_ref().map(|(what, _)| what.as_str()).or(disk)
    }

    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters { trains_sent: self.packets.port.sent, trains_lost: self.packets.port.lost, ..self.core.counters }
    }

    /// The connection to the agent. Its events belong to this member.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.link.client
    }
}

/// Readable when [`Member::wait`] has something to take. A program with a loop of its own watches it, and
/// calls [`Member::wait`] with a timeout of zero when it is readable, and at least every [`Config::resend`].
impl<P: Start> std::os::fd::AsFd for Member<P> {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.epoll)
    }
}

/// Waits up to `sleep_ns`. Returns how many descriptors are ready; none if a signal was handled.
fn poll(epoll: &OwnedFd, ready: &mut [epoll::Event], sleep_ns: u64) -> Result<usize, Error> {
    let timeout = Timespec {
        tv_sec: i64::try_from(sleep_ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: (sleep_ns % 1_000_000_000).cast_signed(),
    };
    match epoll::wait(epoll, ready, Some(&timeout)) {
        Err(Errno::INTR) => Ok(0),
        result => result.map_err(Error::system("epoll_wait")),
    }
}

/// A sealer for packets of this sender, in a new session.
fn sealer(key: &Key, sender: Sender, spoken: Spoken) -> Result<Sealer, Error> {
    let mut session = [0; 8];
    rustix::rand::getrandom(&mut session, rustix::rand::GetRandomFlags::empty()).map_err(Error::system("getrandom"))?;
    Ok(Sealer::new(key, sender, u64::from_ne_bytes(session)).speaking(spoken))
}

/// The process that a new watch has found up.
fn up(monitor: &Monitor) -> Option<u32> {
    (monitor.state == PeerState::Alive).then_some(monitor.incarnation)
}

/// The ids of hosts with these names.
fn ids(names: &[String], hello: &fide_agent_api::protocol::HelloOk) -> Result<HostSet, Error> {
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
