// SPDX-License-Identifier: Apache-2.0
//! [`Client`]: calls to the agent, and waiting for events.

use crate::error::{Declined, Error};
use crate::error::{ended, timed_out};
use crate::event::{Event, MonitorId, ProcessId};
use crate::granted::{Joined, Monitor, Wanted, micros};
use crate::lanes::{Fed, Lanes};
use crate::link::{Link, Received};
use crate::memory::{Live, Memory, now_ns};
use crate::permit::Permit;
use crate::reattach::{Item, State};
use crate::registry::{MONITORS_MAX, PROCESSES_MAX, Registry};
use fide_agent_api::event::EventRecord;
use fide_agent_api::protocol::{
    DEFAULT_SOCKET, HelloOk, JoinOk, MESSAGE_MAX, MonitorOk, Op, PROTOCOL_VERSION, PeerState, Reply, Request,
    SOCKET_ENV, check_name, parse_target,
};
use fide_agent_api::table::{TableReader, state};
use fide_shm::spsc::PushError;
use fide_types::HOST_SLOT;
use rustix::{
    event::{PollFd, PollFlags, Timespec, epoll},
    fd::{AsFd, BorrowedFd, OwnedFd},
    io::Errno,
    time::{TimerfdClockId, TimerfdFlags},
};
use std::{collections::VecDeque, io, path::PathBuf, time::Duration};

/// Records taken from the ring in one go.
const DRAIN_MAX: usize = 64;
/// Rounds in a row without any news: as many records as the largest inbox holds.
const DRAIN_ROUNDS_MAX: usize = 64;
const TOKEN_EVENTS: u64 = 0;
pub(crate) const TOKEN_SOCKET: u64 = 1;
const TOKEN_TIMER: u64 = 2;

/// How to connect. `ConnectOptions::default()` is right for most programs.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// The agent's socket; `None`: `$FIDE_SOCKET`, else `/run/fide/agent.sock`.
    pub path: Option<PathBuf>,
    /// Name of the program, shown to people who look at the agent; empty: the executable's name.
    pub program: String,
    /// How long to spin on the ring before sleeping in [`Client::wait_event`]; 0: never. Costs that much of
    /// a core.
    pub spin_ns: u64,
    /// How long a call waits for the agent's answer; [`Client::connect`] also waits this long for a free
    /// place at its socket.
    pub call_timeout: Duration,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self { path: None, program: String::new(), spin_ns: 0, call_timeout: Duration::from_secs(5) }
    }
}

/// A client's counters since it connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Records about subjects that this client does not watch; ignored.
    pub unknown: u64,
    /// Records of events that were delivered already; dropped.
    pub duplicates: u64,
    /// Records that could not be decoded; skipped.
    pub undecodable: u64,
    /// Times the agent went away.
    pub detached: u64,
}

/// A connection to the agent of this host. If the agent goes away, the client looks for it by itself. For
/// one thread at a time; [`Client::live`] gives the part that any thread may use.
#[derive(Debug)]
pub struct Client {
    pub(crate) path: PathBuf,
    pub(crate) program: String,
    spin_ns: u64,
    call_timeout: Duration,
    pub(crate) epoll: OwnedFd,
    pub(crate) timer: OwnedFd,
    pub(crate) state: State,
    pub(crate) attempt: u32,
    /// Registrations that a new agent refused and that are tried again, since all were last in place.
    pub(crate) refused_again: u32,
    /// Items that are still to be registered with a new agent; the one that is being registered is last.
    pub(crate) todo: Vec<Item>,
    /// Request and lane that is being opened again.
    pub(crate) reopening: Option<(u64, u32)>,
    pub(crate) hello: HelloOk,
    pub(crate) memory: Memory,
    live: Live,
    /// Incarnation of this host as reported to the user: at `connect`, or by [`Event::Rejoined`].
    incarnation_reported: u32,
    pub(crate) registry: Registry,
    pub(crate) lanes: Lanes,
    pub(crate) pending: VecDeque<Event>,
    pub(crate) next_id: u64,
    pub(crate) lost_seen: u64,
    pub(crate) counters: Counters,
    pub(crate) buffer: Box<[u8; MESSAGE_MAX]>,
}

/// How an exchange with the agent failed.
enum Failed {
    Gone(String),
    Late,
}

/// Sends one request and waits for its reply. Replies to other calls, which were given up or are not waited
/// for, go to `others`.
fn exchange(
    link: &Link,
    request: &Request,
    buffer: &mut [u8; MESSAGE_MAX],
    timeout: Duration,
    others: &mut Vec<(Reply, Vec<OwnedFd>)>,
) -> Result<(Reply, Vec<OwnedFd>), Failed> {
    let deadline_ns = now_ns().saturating_add(timeout.as_nanos() as u64);
    match link.send(&request.to_bytes()) {
        Ok(()) => (),
        Err(why) if why.kind() == io::ErrorKind::WouldBlock => return Err(Failed::Late),
        Err(why) => return Err(Failed::Gone(why.to_string())),
    }
    loop {
        match link.receive(buffer) {
            Received::Message(len, fds) => match Reply::parse(&buffer[..len]) {
                Ok(reply) if reply.id == request.id => return Ok((reply, fds)),
                Ok(reply) => {
                    others.push((reply, fds));
                    continue;
                }
                Err(error) => return Err(Failed::Gone(format!("the agent sent what is no reply: {error}"))),
            },
            Received::Gone(why) => return Err(Failed::Gone(why)),
            Received::Nothing => (),
        }
        let remaining = deadline_ns.saturating_sub(now_ns());
        if remaining == 0 {
            return Err(Failed::Late);
        }
        poll_readable(&[link.as_fd()], Duration::from_nanos(remaining));
    }
}

/// Waits until one of the descriptors is readable, a signal comes or the time is over; the caller checks
/// again anyway.
pub(crate) fn poll_readable(fds: &[BorrowedFd<'_>], timeout: Duration) {
    let mut polled: Vec<_> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let _ = rustix::event::poll(&mut polled, Some(&timespec(timeout)));
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs().min(i32::MAX as u64) as i64, tv_nsec: duration.subsec_nanos().into() }
}

impl Client {
    /// Connects to the agent of this host.
    ///
    /// # Errors
    /// [`Error::NoAgent`] if none answers, [`Error::Refused`] with code `version` if it speaks another
    /// protocol, and the errors of a broken agent.
    pub fn connect(options: ConnectOptions) -> Result<Self, Error> {
        let from_env = || std::env::var_os(SOCKET_ENV).filter(|path| !path.is_empty()).map(PathBuf::from);
        let path = options.path.or_else(from_env).unwrap_or_else(|| DEFAULT_SOCKET.into());
        let program = if options.program.is_empty() { executable() } else { options.program };
        let link =
            Link::connect(&path, options.call_timeout).map_err(|errno| Error::NoAgent { path: path.clone(), errno })?;
        let op = Op::Hello { protocol: PROTOCOL_VERSION, program: program.clone(), session: None, bell: true };
        let mut buffer = Box::new([0; MESSAGE_MAX]);
        let request = Request { id: 1, op };
        let greeted = exchange(&link, &request, &mut buffer, options.call_timeout, &mut Vec::new());
        let (reply, fds) = greeted.map_err(|failed| match failed {
            Failed::Gone(why) => Error::HungUp { op: "hello", why },
            Failed::Late => timed_out("hello", options.call_timeout),
        })?;
        let hello = checked_hello(reply)?;
        let memory = Memory::map(&hello, fds)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(Error::system("epoll_create"))?;
        let timer =
            rustix::time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
                .map_err(Error::system("timerfd_create"))?;
        let mut client = Self {
            path,
            program,
            spin_ns: options.spin_ns,
            call_timeout: options.call_timeout,
            epoll,
            timer,
            live: Live::new(memory.live(), hello.incarnation),
            incarnation_reported: hello.incarnation,
            lost_seen: memory.session.lost(),
            state: State::Away,
            attempt: 0,
            refused_again: 0,
            todo: Vec::new(),
            reopening: None,
            hello,
            memory,
            registry: Registry::default(),
            lanes: Lanes::default(),
            pending: VecDeque::with_capacity(DRAIN_MAX),
            next_id: 1,
            counters: Counters::default(),
            buffer,
        };
        client.watch_fd(client.timer.as_fd(), TOKEN_TIMER)?;
        client.watch_fd(link.as_fd(), TOKEN_SOCKET)?;
        client.watch_events()?;
        client.state = State::Attached(link);
        Ok(client)
    }

    pub(crate) fn watch_fd(&self, fd: BorrowedFd<'_>, token: u64) -> Result<(), Error> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
            .map_err(Error::system("epoll_ctl"))
    }

    pub(crate) fn watch_events(&self) -> Result<(), Error> {
        self.watch_fd(self.memory.events_fd(), TOKEN_EVENTS)
    }

    /// Replaces the memory, after the old one's events were drained.
    pub(crate) fn install(&mut self, memory: Memory) {
        // While registering it is not in the set, and there is nothing to remove.
        let _ = epoll::delete(&self.epoll, self.memory.events_fd());
        self.live.replace(memory.live());
        self.memory = memory;
    }

    pub(crate) fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    pub(crate) fn call<T: serde::de::DeserializeOwned>(&mut self, name: &'static str, op: Op) -> Result<T, Error> {
        self.call_for(name, op, self.call_timeout).map(|(answer, _)| answer)
    }

    /// Asks, and waits for the answer and its descriptors.
    pub(crate) fn call_for<T: serde::de::DeserializeOwned>(
        &mut self,
        name: &'static str,
        op: Op,
        timeout: Duration,
    ) -> Result<(T, Vec<OwnedFd>), Error> {
        self.await_attached()?;
        let request = Request { id: self.new_id(), op };
        let State::Attached(link) = &self.state else {
            return Err(Error::Detached("no agent answers".into()));
        };
        let mut others = Vec::new();
        let outcome = exchange(link, &request, &mut self.buffer, timeout, &mut others);
        for (reply, fds) in others {
            self.late_reply(reply, fds);
        }
        self.wake_for_pending();
        match outcome {
            Ok((reply, fds)) => Ok((reply.result()?, fds)),
            Err(Failed::Late) => Err(timed_out(name, timeout)),
            Err(Failed::Gone(why)) => {
                self.detach(&why);
                Err(Error::HungUp { op: name, why })
            }
        }
    }

    /// If the agent is away, looks for it for as long as a call may take.
    pub(crate) fn await_attached(&mut self) -> Result<(), Error> {
        let deadline_ns = now_ns().saturating_add(self.call_timeout.as_nanos() as u64);
        while !self.is_attached() {
            let remaining = deadline_ns.saturating_sub(now_ns());
            if remaining == 0 {
                return Err(Error::Detached(format!("no agent answers at {}", self.path.display())));
            }
            let mut fds = vec![self.timer.as_fd()];
            fds.extend(self.state.link().map(AsFd::as_fd));
            poll_readable(&fds, Duration::from_nanos(remaining));
            self.on_socket();
            self.on_timer();
        }
        Ok(())
    }

    /// Registers this process to be watched by others (FiDe §3.1 `join`), without beats.
    ///
    /// # Errors
    /// [`Error::Refused`]: `name_taken`, `full`; [`Error::Name`] for a name that cannot be one.
    pub fn join(&mut self, name: &str) -> Result<Joined, Error> {
        self.join_pid(name, 0, Duration::ZERO)
    }

    /// Registers the process `pid` (0: this one). With a `beat_timeout` it counts as stalled when
    /// [`Live::beat`] was not called for that long; zero: never.
    ///
    /// # Errors
    /// As [`Client::join`], `not_permitted` for a process of another user, and `not_found` if there is no
    /// such process.
    pub fn join_pid(&mut self, name: &str, pid: u32, beat_timeout: Duration) -> Result<Joined, Error> {
        check_name(name)?;
        if self.registry.processes.len() >= PROCESSES_MAX {
            self.forget_ended();
        }
        if self.registry.processes.len() >= PROCESSES_MAX {
            return Err(Error::TooMany { what: "processes", limit: PROCESSES_MAX });
        }
        let beat_timeout_us = micros(beat_timeout);
        let granted: JoinOk = self.call("join", Op::Join { name: name.to_owned(), pid, beat_timeout_us })?;
        let (slot, incarnation, pbsize) = (granted.slot, granted.incarnation, granted.pbsize);
        let id = self.registry.add_process(name, pid, beat_timeout_us, granted);
        Ok(Joined { id, slot, incarnation, pbsize })
    }

    /// Ends a registration: watchers are notified that it `left`, which is no failure (FiDe §3.1 `quit`).
    ///
    /// # Errors
    /// [`Error::Unregistered`], or the connection's errors.
    pub fn quit(&mut self, process: ProcessId) -> Result<(), Error> {
        self.await_attached()?;
        let joined = self.registry.processes.remove(&process.0).ok_or(Error::Unregistered("that process"))?;
        ended(self.call("quit", Op::Quit { slot: joined.granted.slot, incarnation: Some(joined.granted.incarnation) }))
    }

    /// Forgets processes of other pids that have ended. Nothing notifies the program that registered them,
    /// but the table shows it.
    fn forget_ended(&mut self) {
        let (table, host) = (&self.memory.table, self.hello.host_id);
        self.registry.processes.retain(|_, joined| {
            let state = table.process(host, joined.granted.slot).map_or(state::UNKNOWN, |process| process.state);
            matches!(state, state::UNKNOWN | state::ALIVE | state::STALLED)
        });
    }

    /// Watches `name@host`, or `@host` for the host itself (FiDe §3.1 `monitor`). The target need not be
    /// there yet.
    ///
    /// # Errors
    /// [`Error::Refused`]: `unknown_host`, `timeout_too_short` (with the shortest one), `full`;
    /// [`Error::Name`].
    pub fn monitor(&mut self, target: &str, wanted: Wanted) -> Result<Monitor, Error> {
        parse_target(target)?;
        if self.registry.monitors.len() >= MONITORS_MAX {
            return Err(Error::TooMany { what: "monitors", limit: MONITORS_MAX });
        }
        let granted: MonitorOk = self.call("monitor", wanted.op(target))?;
        if granted.watch == 0 {
            return Err(Error::Protocol { op: "monitor", problem: "watch id 0".into() });
        }
        let id = self.registry.add_monitor(target, wanted, granted.clone());
        Ok(Monitor {
            id,
            host_id: granted.host_id,
            timeout: Duration::from_micros(granted.timeout_us.into()),
            pbsize: granted.pbsize,
            state: granted.state,
            slot: granted.slot,
            incarnation: granted.incarnation,
        })
    }

    /// Stops watching (FiDe §3.1 `unmonitor`). No more events of this monitor follow.
    ///
    /// # Errors
    /// [`Error::Unregistered`], or the connection's errors.
    pub fn unmonitor(&mut self, monitor: MonitorId) -> Result<(), Error> {
        self.await_attached()?;
        let monitored = self.registry.monitors.remove(&monitor.0).ok_or(Error::Unregistered("that monitor"))?;
        ended(self.call("unmonitor", Op::Unmonitor { watch: monitored.watch }))
    }

    /// Sends `bytes` with the heartbeats, from the process that joined first (FiDe §3.1 `piggyback`). No
    /// system call.
    ///
    /// # Errors
    /// [`Declined`].
    pub fn piggyback(&mut self, bytes: &[u8]) -> Result<(), Declined> {
        let first = self.registry.processes.keys().next().ok_or(Declined::NotJoined)?;
        self.piggyback_as(ProcessId(*first), bytes)
    }

    /// As [`Client::piggyback`], from the given process of this client.
    ///
    /// # Errors
    /// [`Declined`].
    pub fn piggyback_as(&mut self, process: ProcessId, bytes: &[u8]) -> Result<(), Declined> {
        let granted = &self.registry.processes.get(&process.0).ok_or(Declined::NotJoined)?.granted;
        let too_large = Declined::TooLarge { len: bytes.len(), pbsize: granted.pbsize };
        if bytes.len() > granted.pbsize.into() {
            return Err(too_large);
        }
        self.memory.session.push_outbox(granted.slot, bytes).map_err(|error| match error {
            PushError::Full => Declined::Full,
            PushError::TooLong { .. } => too_large,
            PushError::Broken(_) => Declined::Broken,
        })
    }

    /// As [`Client::piggyback`], for a program that waits for others' answers. The agent is woken and sends
    /// the message at once, up to twice between two heartbeats, and later messages with the next heartbeat.
    /// Not on planned trees, which have room for one packet in each period. One system call.
    ///
    /// # Errors
    /// [`Declined`].
    pub fn piggyback_now(&mut self, bytes: &[u8]) -> Result<(), Declined> {
        self.piggyback(bytes)?;
        self.memory.ring();
        Ok(())
    }

    /// "I make progress"; see [`Live::beat`].
    pub fn beat(&self) {
        self.live.beat();
    }

    /// Whether this host must not act now; see [`Live::fenced`].
    pub fn fenced(&self) -> bool {
        self.live.fenced()
    }

    /// CLOCK_MONOTONIC until which this program may act; see [`Live::lease_until_ns`].
    #[must_use]
    pub fn lease_until_ns(&self) -> u64 {
        self.live.lease_until_ns()
    }

    /// The program acknowledges that this host is now `incarnation`. It knows that others have declared
    /// dead everything that ran here before, and may have replaced it, and it acts as a newcomer. From here
    /// on the lease of that incarnation counts ([`Live::fenced`]); until then the program is fenced.
    /// `incarnation` is the one in [`Event::Rejoined`].
    ///
    /// # Errors
    /// [`Error::NotRejoined`] if that is not the last incarnation reported to this client; nothing has
    /// changed.
    pub fn rejoined_acknowledge(&mut self, incarnation: u32) -> Result<(), Error> {
        if incarnation != self.incarnation_reported {
            return Err(Error::NotRejoined { given: incarnation, reported: self.incarnation_reported });
        }
        self.live.acknowledge(incarnation);
        Ok(())
    }

    /// Reports once that this host has another incarnation. It reads the table, because the record of it
    /// may have been lost.
    pub(crate) fn check_incarnation(&mut self) {
        let incarnation = self.memory.table.incarnation();
        if incarnation != self.incarnation_reported && !self.state.is_registering() {
            self.incarnation_reported = incarnation;
            self.pending.push_back(Event::Rejoined { incarnation });
        }
    }

    /// Whether this program may act now, as what, and until when; see [`Live::may_act`].
    #[must_use]
    pub fn may_act(&self) -> Option<Permit> {
        self.live.may_act()
    }

    /// The lock-free part, for other threads.
    pub fn live(&self) -> Live {
        self.live.clone()
    }

    /// The alive table.
    pub fn table(&self) -> &TableReader {
        &self.memory.table
    }

    /// The path of the agent's socket.
    pub fn socket_path(&self) -> &std::path::Path {
        &self.path
    }

    /// The agent's answer to `hello`.
    pub fn agent(&self) -> &HelloOk {
        &self.hello
    }

    /// Whether the client is connected to an agent.
    pub fn is_attached(&self) -> bool {
        matches!(self.state, State::Attached(_))
    }

    /// The counters since it connected.
    pub fn counters(&self) -> Counters {
        Counters {
            unknown: self.registry.unknown + self.counters.unknown,
            duplicates: self.registry.duplicates,
            ..self.counters
        }
    }

    /// The state of a monitor's target: dead if its end was delivered to this client, else as in the alive
    /// table.
    pub fn peer_state(&self, monitor: MonitorId) -> PeerState {
        let Some((host, slot, incarnation, over)) = self.registry.newest(monitor) else { return PeerState::Unknown };
        let table = self.table();
        let in_table = if slot == HOST_SLOT {
            table.host(host).map(|record| record.incarnation)
        } else {
            table.process(host, slot).map(|record| record.incarnation)
        };
        match (in_table, table.state(host, slot)) {
            _ if over => PeerState::Dead,
            (Some(found), Some(state::ALIVE | state::STALLED)) if found == incarnation => PeerState::Alive,
            (None, _) | (_, None | Some(state::UNKNOWN)) => PeerState::Unknown,
            _ => PeerState::Dead,
        }
    }

    /// A descriptor that is readable when [`Client::poll_event`] may have an event; for any event loop
    /// (level triggered). When it is readable, call `poll_event` until it returns `None`.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// The next event if there is one; never waits.
    ///
    /// # Errors
    /// A damaged event ring.
    pub fn poll_event(&mut self) -> Result<Option<Event>, Error> {
        if let Some(event) = self.take()? {
            return Ok(Some(event));
        }
        self.turn(Some(Duration::ZERO))?;
        Ok(self.pending.pop_front())
    }

    /// The next event; waits for one, at most `timeout` (`None`: for ever). `None` when the time is over or
    /// a signal was handled.
    ///
    /// # Errors
    /// A damaged event ring.
    pub fn wait_event(&mut self, timeout: Option<Duration>) -> Result<Option<Event>, Error> {
        let deadline_ns = timeout.map(|timeout| now_ns().saturating_add(timeout.as_nanos() as u64));
        loop {
            if let Some(event) = self.take()? {
                return Ok(Some(event));
            }
            if self.spin_ns > 0 {
                let until_ns = now_ns().saturating_add(self.spin_ns).min(deadline_ns.unwrap_or(u64::MAX));
                while self.memory.is_empty() && now_ns() < until_ns {
                    std::hint::spin_loop();
                }
                if let Some(event) = self.take()? {
                    return Ok(Some(event));
                }
            }
            let remaining = deadline_ns.map(|deadline| Duration::from_nanos(deadline.saturating_sub(now_ns())));
            if !self.turn(remaining)? {
                return Ok(self.pending.pop_front());
            }
        }
    }

    fn take(&mut self) -> Result<Option<Event>, Error> {
        if self.pending.is_empty() && !self.state.is_registering() {
            self.drain()?;
        }
        Ok(self.pending.pop_front())
    }

    /// Handles the descriptors once; whether any was ready.
    fn turn(&mut self, timeout: Option<Duration>) -> Result<bool, Error> {
        let mut ready = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 3];
        let timeout = timeout.map(timespec);
        let count = match epoll::wait(&self.epoll, &mut ready, timeout.as_ref()) {
            Ok(count) => count,
            Err(Errno::INTR) => return Ok(false),
            Err(errno) => return Err(Error::System { call: "epoll_wait", errno }),
        };
        for event in &ready[..count] {
            match event.data.u64() {
                TOKEN_EVENTS => {
                    self.memory.acknowledge();
                    self.drain()?;
                }
                TOKEN_SOCKET => self.on_socket(),
                _ => self.on_timer(),
            }
        }
        Ok(count > 0)
    }

    /// Takes records until there is news or the ring is empty. Bounded; if records are left, the descriptor
    /// wakes again.
    fn drain(&mut self) -> Result<(), Error> {
        for _ in 0..DRAIN_ROUNDS_MAX {
            let records = self.drain_some()?;
            if records < DRAIN_MAX {
                return Ok(());
            }
            if !self.pending.is_empty() {
                break;
            }
        }
        self.memory.wake_again();
        Ok(())
    }

    /// Takes everything out of a ring that is about to be left, because its agent is gone.
    pub(crate) fn drain_all(&mut self) {
        while matches!(self.drain_some(), Ok(DRAIN_MAX)) {}
    }

    fn drain_some(&mut self) -> Result<usize, Error> {
        let Self { memory, registry, lanes, pending, counters, .. } = self;
        let records = memory.drain(DRAIN_MAX, |bytes| {
            let fed = EventRecord::split(bytes).and_then(|(record, data)| {
                let event = record.decode(data)?;
                match lanes.feed(&record, &event) {
                    Fed::Event(event) => pending.push_back(event),
                    Fed::Nobody => counters.unknown += 1,
                    Fed::NotMine => registry.feed(&record, event, |event| pending.push_back(event)),
                }
                Ok(())
            });
            if fed.is_err() {
                counters.undecodable += 1;
            }
        })?;
        self.check_incarnation();
        let lost = self.memory.session.lost();
        if lost != self.lost_seen {
            self.pending.push_back(Event::Lost { count: lost.wrapping_sub(self.lost_seen) });
            self.lost_seen = lost;
        }
        Ok(records)
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// The agent's answer to `hello`, if it is of this version.
pub(crate) fn checked_hello(reply: Reply) -> Result<HelloOk, Error> {
    let hello: HelloOk = reply.result()?;
    if hello.protocol != PROTOCOL_VERSION {
        let problem = format!("protocol {} where this library speaks {PROTOCOL_VERSION}", hello.protocol);
        return Err(Error::Protocol { op: "hello", problem });
    }
    Ok(hello)
}

fn executable() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
