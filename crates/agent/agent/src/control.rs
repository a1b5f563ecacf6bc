// SPDX-License-Identifier: Apache-2.0
//! The control thread: clients' requests, the processes under watch, the journal. Nothing here is urgent;
//! urgent events go from the loop straight to the clients.

mod closing;
mod connections;
mod excluded;
mod handing;
mod joining;
mod keys;
mod lanes;
pub(crate) mod quotas;
mod requests;
mod serving;
mod shapes;
mod watched;

use crate::command::REATTACH;
use crate::excluded::Excluded;
use fide_types::HostId;
use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use fide_bpf::{ClientRings, ExitWatch};
use fide_net::link::Sockets;
use fide_sys::clock::mono_ns;
use fide_wire::{Keys, MAX_CLIENTS, Shape};
use rustix::{
    buffer::spare_capacity,
    event::{Timespec, epoll},
};

use crate::command::{Change, Command, EngineGone, Exchange, Reply};
use crate::config::{Config, Role};
use crate::fault::{self, Fault};
use crate::handover::{ProcessState, SessionState};
use crate::incarnation::Noted;
use crate::journal::Journal;
use crate::names::Kept;
use crate::notify::Notify;
use crate::process::Process;
use crate::pulse::{Look, Pulse};
use crate::signals::{Signal, Signals};
use crate::snapshot::Snapshot;
use crate::socket::{Credentials, Listener};
use crate::subuid::Shares;
use crate::trees::{Order, Report, Seen, Trees};
use crate::{key, mtu};
use closing::Closer;
use connections::Connections;
use fide_agent_api::status::Rungs;
use keys::KeyChange;
use lanes::Tickets;
use shapes::Shapes;
use watched::{Watched, take_ended, token_of};

/// How often the thread checks files and timers.
const TICK: Duration = Duration::from_millis(200);
/// The same while a user that asked too much waits.
const TICK_WAITED_FOR: Duration = Duration::from_millis(10);
/// How long a leaving agent keeps sending its goodbye.
const GOODBYE: Duration = Duration::from_millis(100);

/// Read once, when an agent starts.
const SUBUID: &str = "/etc/subuid";

const TOKEN_LISTENER: u64 = 0;
const TOKEN_EXCHANGE: u64 = 1;
const TOKEN_SIGNALS: u64 = 2;
const TOKEN_TREES: u64 = 3;
const TOKEN_PROCESS: u64 = 1 << 32;
const TOKEN_CONNECTION: u64 = 2 << 32;

/// Why the control thread ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A signal asked it to leave; the peers know.
    Left,
    /// The loop has ended.
    EngineGone,
    /// Another agent has taken over.
    HandedOver,
}

/// The parts of the control thread.
pub struct Parts {
    pub config: Config,
    pub me: HostId,
    pub listener: Listener,
    pub exchange: Arc<Exchange>,
    pub rings: Option<ClientRings>,
    pub exit_watch: Option<ExitWatch>,
    pub table: OwnedFd,
    /// The keys as in the file.
    pub keys: Keys,
    /// Taken before the file was read, so that no later change of it is missed.
    pub key_stamp: Option<key::Stamp>,
    /// The shared part of this host's configuration.
    pub shape: Shape,
    pub rungs: Rungs,
    pub incarnation: u32,
    pub timeout_ns: u64,
    /// Names of the planes' interfaces.
    pub interfaces: Vec<String>,
    pub signals: Signals,
    /// Descriptors that a new agent would take over.
    pub estate: Estate,
    /// Only where a controller plans the trees.
    pub trees: Option<Trees>,
}

/// Descriptors for an agent that takes over, kept apart from those in use.
pub struct Estate {
    /// One per plane.
    pub sockets: Vec<Sockets>,
    /// As `Receive::fds` gives them, links last; empty without the receive program.
    pub receive: Vec<OwnedFd>,
    pub links: usize,
    pub native: bool,
    /// The alive table, writable.
    pub table: OwnedFd,
}

/// The state that this agent has taken over from the one before.
pub struct Resumed {
    /// Each session with its region, its events and its doorbell.
    pub sessions: Vec<(SessionState, OwnedFd, OwnedFd, OwnedFd)>,
    pub processes: Vec<(ProcessState, OwnedFd)>,
    pub journal: Journal,
    /// Names that users have joined under.
    pub names: Kept,
}

/// A session. After a takeover it waits a while for its client.
struct Session {
    /// Distinguishes the sessions that one client's place has had, from 1.
    serial: u64,
    token: String,
    program: String,
    who: Credentials,
    watches: u32,
    region: OwnedFd,
    events: OwnedFd,
    ring: bool,
    doorbell: OwnedFd,
    /// When to give up waiting for its client; `None` while that is connected.
    orphan_until: Option<Instant>,
}

/// The control thread.
pub struct Control {
    parts: Parts,
    epoll: OwnedFd,
    connections: Connections,
    last_serial: u64,
    sessions: HashMap<u8, Session>,
    /// Sessions opened in this turn.
    opened: usize,
    /// Closes the sessions that have ended.
    closer: Closer,
    own_uid: u32,
    processes: HashMap<u8, Watched>,
    names: Kept,
    /// Users with several ids.
    shares: Shares,
    journal: Journal,
    key_stamp: Option<key::Stamp>,
    key_change: Option<KeyChange>,
    /// The newest generation of views that is stored.
    noted: Noted,
    /// Hosts that are configured otherwise.
    shapes: Shapes,
    /// The payload that the loop was last given; 0 before the first.
    payload_max: usize,
    /// Bytes that the heartbeats' lane was granted.
    payload_granted: usize,
    /// Requests about lanes that are not answered yet.
    tickets: Tickets,
    notify: Notify,
    pulse: Pulse,
    /// An exclusion after which this host has not begun again yet.
    excluded: Option<Excluded>,
    snapshot: Option<Box<Snapshot>>,
    /// Planted: the next process that joins cannot be watched.
    join_unwatched: bool,
    end: Option<End>,
}

impl Control {
    /// Puts the parts together.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(parts: Parts, notify: Notify) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let add =
            |fd: BorrowedFd<'_>, token| epoll::add(&epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN);
        add(parts.listener.as_fd(), TOKEN_LISTENER)?;
        add(parts.exchange.control_fd(), TOKEN_EXCHANGE)?;
        add(parts.signals.as_fd(), TOKEN_SIGNALS)?;
        if let Some(trees) = &parts.trees {
            add(trees.wake_fd(), TOKEN_TREES)?;
        }
        let journal = Journal::new(parts.config.member(parts.me).name.as_str());
        Ok(Self {
            key_stamp: parts.key_stamp,
            epoll,
            connections: Connections::new(&parts.config.limits, REATTACH),
            last_serial: 0,
            sessions: HashMap::new(),
            opened: 0,
            own_uid: rustix::process::geteuid().as_raw(),
            closer: Closer::start(parts.rings.as_ref())?,
            processes: HashMap::new(),
            names: Kept::default(),
            shares: Shares::read(Path::new(SUBUID), rustix::process::geteuid().as_raw()),
            journal,
            key_change: None,
            noted: Noted::default(),
            shapes: Shapes::default(),
            payload_max: 0,
            payload_granted: usize::MAX,
            tickets: Tickets::default(),
            notify,
            pulse: Pulse::new(Instant::now()),
            excluded: None,
            snapshot: Some(Snapshot::empty()),
            join_unwatched: false,
            end: None,
            parts,
        })
    }

    /// Goes on with the clients and processes of the agent before.
    ///
    /// # Errors
    /// The kernel's.
    pub fn resume(&mut self, resumed: Resumed) -> io::Result<()> {
        self.journal = resumed.journal;
        for (state, region, events, doorbell) in resumed.sessions {
            let serial = self.next_serial();
            self.sessions.insert(
                state.client,
                Session {
                    serial,
                    token: state.token,
                    program: state.program,
                    who: Credentials { pid: state.pid, uid: state.uid, share: self.shares.of(state.uid) },
                    watches: state.watches,
                    region,
                    events,
                    ring: state.ring,
                    doorbell,
                    orphan_until: Some(Instant::now() + REATTACH),
                },
            );
        }
        for (state, pidfd) in resumed.processes {
            let process = Process::take_over(state.pid, state.start_ticks, state.uid, pidfd);
            let token = token_of(self.next_serial());
            epoll::add(&self.epoll, &process, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?;
            self.processes.insert(
                state.slot,
                Watched {
                    process,
                    token,
                    name: state.name,
                    cookie: state.cookie,
                    incarnation: state.incarnation,
                    client: state.client,
                    uid: state.uid,
                    by: state.by,
                    share: self.shares.of(state.by),
                },
            );
        }
        self.names = resumed.names;
        Ok(())
    }

    /// Serves until a signal, or until the loop ends.
    ///
    /// # Errors
    /// The kernel's, if waiting fails.
    pub fn run(&mut self) -> io::Result<End> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        if self.parts.trees.is_some() {
            // This thread moves the trees. The kernel refuses before Linux 6.12: the thread then waits for
            // its turn.
            let _ = fide_client::wake_eagerly();
        }
        self.notify.ready();
        loop {
            events.clear();
            let tick = if self.connections.has_paused() { TICK_WAITED_FOR } else { TICK };
            let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(tick.subsec_nanos()) };
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            self.close_dead(&events);
            self.opened = 0;
            for event in &events {
                let token = event.data.u64();
                match token {
                    TOKEN_LISTENER => self.accept(),
                    TOKEN_EXCHANGE => self.parts.exchange.quiet_control(),
                    TOKEN_SIGNALS => match self.parts.signals.take() {
                        Some(Signal::Stop) => return Ok(self.leave()),
                        Some(Signal::Reload) => self.reload_key(),
                        None => {}
                    },
                    TOKEN_TREES => {
                        if let Some(end) = self.move_trees() {
                            return Ok(end);
                        }
                    }
                    token if token & TOKEN_CONNECTION != 0 => self.serve(token),
                    token => self.process_left(token),
                }
            }
            if let Some(end) = self.end {
                return Ok(end);
            }
            let gone = self.after_turn().is_err();
            if !self.loop_turns() || gone {
                return Ok(End::EngineGone);
            }
        }
    }

    /// Only turns of the loop feed the service manager's watchdog.
    fn loop_turns(&mut self) -> bool {
        let exchange = &self.parts.exchange;
        match self.pulse.look(exchange.turns(), Instant::now()) {
            Look::Turns => self.notify.alive(),
            Look::Still => {}
            Look::Hangs => exchange.end("it hangs".to_owned()),
        }
        let Some(why) = exchange.ended() else { return true };
        tracing::error!("the loop has ended, and so does this agent: {why}");
        false
    }

    /// Writes the loop's records into the journal and the log, and reports trees to the controller.
    fn note_records(&mut self) {
        while let Some(record) = self.parts.exchange.take_record() {
            let logged = self.journal.may_log(&record);
            let entry = self.journal.add(record);
            if let Some(left_out) = logged {
                tracing::info!(event = %entry.id, "{}", entry.text(&self.parts.config));
                if left_out > 0 {
                    tracing::info!("{left_out} more were not logged; `fide explain` lists the last ones");
                }
            }
            match record.event {
                fide_detector::Event::PathLost { host, plane } => self.report_tree(host, plane, Seen::Lost),
                fide_detector::Event::PathRestored { host, plane } => self.report_tree(host, plane, Seen::Restored),
                _ => {}
            }
        }
    }

    /// Stores the generation of views that the loop needs on disk before it founds, acknowledges or acts by
    /// a view of that generation. The loop publishes the generation as state, so no change of it is missed.
    /// A record could be: the ring may be full, or the agent before may not have handled it.
    fn note_generation(&mut self) {
        let asked = self.parts.exchange.generation_asked();
        if let Some(warning) = self.noted.note(&self.parts.config.state_dir, asked) {
            tracing::warn!("{warning}; this host does not act by a view of it before; it is tried again");
        }
        self.parts.exchange.keep_generation(self.noted.newest());
    }

    /// Handles the loop's output for this thread, and the steps that are due.
    fn after_turn(&mut self) -> Result<(), EngineGone> {
        self.note_records();
        self.note_generation();
        while let Some(report) = self.parts.exchange.take_report() {
            if let Some(trees) = &self.parts.trees {
                trees.report(report);
            }
        }
        while let Some(received) = self.parts.exchange.take_shape() {
            let me = self.parts.config.member(self.parts.me).name;
            if let Some(line) = self.shapes.hear(&self.parts.shape, me, &received, Instant::now()) {
                tracing::warn!("{line}");
            }
        }
        if key::stamp(&self.parts.config.key_file) != self.key_stamp {
            self.reload_key();
        }
        self.change_key()?;
        self.follow_mtu()?;
        self.retry_excluded()?;
        if let Some(fault) = fault::planted(&self.parts.config.state_dir) {
            match fault {
                Fault::ControlPanics => fault::happen(fault),
                Fault::JoinUnwatched => self.join_unwatched = true,
                fault => drop(self.parts.exchange.call(Command::Fault(fault))?),
            }
        }
        let now = Instant::now();
        let orphans: Vec<u8> = self
            .sessions
            .iter()
            .filter(|(_, session)| session.orphan_until.is_some_and(|until| now >= until))
            .map(|(client, _)| *client)
            .collect();
        for client in orphans {
            self.end_session(client);
        }
        self.retry_lanes();
        self.tend_connections();
        Ok(())
    }

    /// Carries out the orders of the trees' threads.
    fn move_trees(&mut self) -> Option<End> {
        let orders: Vec<Order> = self.parts.trees.as_ref()?.take().collect();
        for order in orders {
            match order {
                Order::Call { command, done } => match self.parts.exchange.call(command) {
                    // The thread that asked waits for the reply.
                    Ok(reply) => drop(done.try_send(reply)),
                    Err(EngineGone) => tracing::error!("a lane could not be changed: {EngineGone}"),
                },
                Order::Payload { bytes } => {
                    self.payload_granted = bytes;
                    if let Err(EngineGone) = self.follow_mtu() {
                        tracing::error!("heartbeats of {bytes} bytes: {EngineGone}");
                    }
                }
                Order::Answer { ticket, answer } => self.answer_lane(ticket, answer),
                Order::Aim { plane, tree, done } => {
                    let command = Command::Aim { plane, group: tree.group };
                    if let Err(EngineGone) = self.parts.exchange.call(command) {
                        tracing::error!("plane {plane} could not be moved: {EngineGone}");
                        continue;
                    }
                    self.parts.trees.as_mut()?.keep(plane, tree);
                    tracing::info!(
                        "plane {plane} sends on tree {} of lane {}, group {}",
                        tree.generation,
                        tree.lane,
                        tree.group
                    );
                    // The thread that asked may have given up waiting.
                    let _ = done.try_send(());
                }
                Order::Stop { why } => {
                    tracing::error!("this host leaves, as the controller's policy is to stop: {why}");
                    return Some(self.leave());
                }
            }
        }
        None
    }

    fn report_tree(&self, host: HostId, plane: u8, seen: Seen) {
        if let Some(trees) = &self.parts.trees {
            trees.report(Report { host, label: None, plane, seen });
        }
    }

    /// Heartbeats must fit into a packet of every plane; programs are notified of what remains for their
    /// messages.
    fn follow_mtu(&mut self) -> Result<(), EngineGone> {
        // An interface that is gone carries nothing. Path verdicts report whether it comes back.
        let Ok(fits) = mtu::payload_max(&self.parts.interfaces) else { return Ok(()) };
        let payload_max = self.parts.config.payload_max(fits).min(self.payload_granted);
        if payload_max == self.payload_max {
            return Ok(());
        }
        if self.payload_max != 0 {
            tracing::warn!("the planes carry heartbeats of {payload_max} bytes now, {} before", self.payload_max);
        }
        self.payload_max = payload_max;
        self.parts.exchange.call(Command::SetPayloadMax(payload_max)).map(drop)
    }

    /// Says goodbye for long enough that every peer hears it.
    fn leave(&mut self) -> End {
        self.notify.stopping();
        self.give_back_lanes();
        let period = Duration::from_nanos(self.parts.config.heartbeat_ns);
        if self.parts.config.member(self.parts.me).role == Role::Witness {
            // A witness comes back with the same incarnation, and no host goes on because it is gone.
            let _ = self.parts.exchange.call(Command::Stop);
        } else if self.parts.exchange.call(Command::Leave).is_ok() {
            std::thread::sleep(GOODBYE.max(period * 5));
            // No answer means that the loop has ended already.
            let _ = self.parts.exchange.call(Command::Stop);
        }
        End::Left
    }

    fn end_session(&mut self, client: u8) {
        if let Some(session) = self.sessions.remove(&client) {
            self.give_back_lanes_of(client, session.serial);
        }
        for watched in self.processes.values_mut().filter(|watched| watched.client == client) {
            watched.client = u8::MAX;
        }
        match self.parts.exchange.call(Command::CloseSession { client }) {
            Ok(Reply::Closed(memory)) => self.closer.close(client, memory),
            Ok(_) => {}
            Err(EngineGone) => tracing::error!("a session could not be closed: {EngineGone}"),
        }
    }

    fn next_serial(&mut self) -> u64 {
        self.last_serial += 1;
        self.last_serial
    }

    /// A free place for one more client. If every unused place is still being closed, waits for the first
    /// of them.
    fn free_client(&mut self) -> Option<u8> {
        let unused = (0..u8::try_from(MAX_CLIENTS).expect("64")).filter(|client| !self.sessions.contains_key(client));
        let unused: Vec<u8> = unused.collect();
        self.closer.first_free(&unused)
    }

    /// A pidfd became readable. If the kernel's hook watches this process too, the loop knows already.
    fn process_left(&mut self, token: u64) {
        let Some((slot, watched)) = take_ended(&mut self.processes, token) else { return };
        let _ = epoll::delete(&self.epoll, watched.process.as_fd());
        if let Some(exit_watch) = &self.parts.exit_watch {
            exit_watch.unwatch(watched.process.pid());
        }
        let exit = fide_types::ProcessState::from_wait_status(watched.process.exit_status());
        let change = Change::Exited(exit);
        let at_ns = mono_ns();
        if let Err(EngineGone) =
            self.parts.exchange.call(Command::Changed { slot, cookie: watched.cookie, change, at_ns })
        {
            tracing::error!(name = watched.name, "its end could not be reported to the loop: {EngineGone}");
        }
    }

    /// Takes a new snapshot of the loop.
    fn look(&mut self) -> Result<&Snapshot, EngineGone> {
        let empty = self.snapshot.take().unwrap_or_else(Snapshot::empty);
        match self.parts.exchange.call(Command::Snapshot(empty))? {
            Reply::Snapshot(filled) => Ok(self.snapshot.insert(filled)),
            _ => Err(EngineGone),
        }
    }
}

/// A token that cannot be guessed.
fn token() -> io::Result<String> {
    let mut bytes = [0u8; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
