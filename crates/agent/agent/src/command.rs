// SPDX-License-Identifier: Apache-2.0
//! What the control thread and the loop say to each other.
//!
//! Bounded queues without locks: commands to the loop, replies from it, a record of what happened, and what
//! was found of trees. The loop never waits for the control thread; at the bound of the record it drops and
//! counts, and what it would free it hands back instead.

use fide_types::{ClientSet, ProcessState};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crossbeam_queue::ArrayQueue;
use fide_agent_api::event::EventRecord;
use fide_agent_api::session::AgentSession;
use fide_detector as detector;
use fide_lane::Terms;
use fide_net::link::Sender;
use fide_wire::{AnnouncedShape, Keys, Name};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec},
    time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags},
};

use crate::{frozen::Frozen, lane::Lane, snapshot::Snapshot, timeout::Network, tree_report::Report};

/// Commands waiting for the loop. There is one control thread and it waits for each reply, so a
/// handful would do.
const COMMANDS: usize = 16;
/// Events waiting to be written to the journal: a second of the worst storm (64 hosts of 64
/// processes dying together).
const RECORDS: usize = 8192;
/// The loop answers at its next turn; a loop that is silent for this long is dead.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// One look for the answer. A process that is stopped as a whole loses one of them, and has not waited longer.
const REPLY_STEP: Duration = Duration::from_millis(50);

/// Programs that were joined come back to a new agent within this, if they ever do.
pub const REATTACH: Duration = Duration::from_secs(10);

/// How events reach one client.
#[derive(Debug)]
pub enum Channel {
    /// Through its own BPF ring, which is installed already.
    Ring,
    /// Through the inbox of its session; the timer wakes it (see [`wake`]).
    Inbox(OwnedFd),
}

/// What wakes a client without a ring: a timer that the loop sets to run out at once. The client shares the descriptor,
/// its flags among it, and may do with it what it likes: setting a timer waits for nobody. Writing to an eventfd does
/// once the client has filled it and cleared `O_NONBLOCK`; writing to a pipe waits for a reader that is stopped in the
/// middle by a page that is not there.
///
/// # Errors
/// The kernel's.
pub(crate) fn waker() -> io::Result<OwnedFd> {
    let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
    Ok(rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?)
}

/// Makes a [`waker`] readable.
pub(crate) fn wake(waker: &OwnedFd) {
    let once = Itimerspec {
        it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
        // The shortest: 0 would stop it.
        it_value: Timespec { tv_sec: 0, tv_nsec: 1 },
    };
    // Cannot fail: the descriptor is a timer and the time is a valid one.
    let _ = rustix::time::timerfd_settime(waker, TimerfdTimerFlags::empty(), &once);
}

/// What a client rings when it has left something for a lane, or a piggyback that it waits for.
///
/// # Errors
/// The kernel's.
pub(crate) fn doorbell() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// One client's memory, handed to the loop when the session opens and back when it closes.
#[derive(Debug)]
pub struct Memory {
    pub region: AgentSession,
    pub channel: Channel,
    /// Written by the client when it has left something for a lane. Never read: its edges are waited for.
    pub doorbell: OwnedFd,
}

/// What the control thread asks of the loop.
#[derive(Debug)]
pub enum Command {
    OpenSession {
        client: u8,
        memory: Box<Memory>,
    },
    CloseSession {
        client: u8,
    },
    Join {
        client: u8,
        name: Name,
        beat_timeout_ns: u64,
    },
    Changed {
        slot: u8,
        cookie: u64,
        change: Change,
        at_ns: u64,
    },
    Monitor {
        client: u8,
        host: u16,
        name: Option<Name>,
        wanted: detector::Wanted,
    },
    Unmonitor {
        client: u8,
        watch: u32,
    },
    /// What an agent before has told to be up, to this watch.
    Former {
        client: u8,
        watch: u32,
        slot: u8,
        incarnation: u32,
        timeout_ns: u64,
    },
    Snapshot(Box<Snapshot>),
    SetKeys(Keys),
    /// Where a plane's packets go from now on: another tree.
    Aim {
        plane: u8,
        group: std::net::Ipv4Addr,
    },
    /// What the network between a peer and this host was planned to add.
    SetNetwork {
        host: u16,
        network: Network,
    },
    /// A lane in the place `handle`.
    OpenLane {
        handle: u8,
        lane: Box<Lane>,
    },
    /// Whose messages a lane takes from now on.
    ShareLane {
        handle: u8,
        clients: ClientSet,
    },
    /// What a lane's tree is sent through from now on.
    AimLane {
        handle: u8,
        tree: u8,
        sender: Box<Sender>,
    },
    /// What a lane keeps to from now on.
    ChangeLane {
        handle: u8,
        terms: Terms,
        type_of_service: u8,
    },
    CloseLane {
        handle: u8,
    },
    /// Whether a client hears what comes for a service.
    Listen {
        client: u8,
        service: u8,
        on: bool,
    },
    /// Which hosts are up, and which hold this one for up.
    Standings,
    /// A record for these clients.
    Tell {
        clients: ClientSet,
        record: EventRecord,
        data: Box<[u8]>,
    },
    /// The largest packet that every plane carries.
    SetPayloadMax(usize),
    Restart {
        incarnation: u32,
    },
    /// A process that is under watch already belongs to this client from now on.
    Adopt {
        slot: u8,
        client: u8,
        beat_timeout_ns: u64,
    },
    Leave,
    /// Write down the state, then only repeat the last heartbeat: another agent takes over.
    Freeze,
    /// The other agent did not: go on.
    Thaw,
    Stop,
    /// What a test has planted.
    Fault(crate::fault::Fault),
}

/// What became of a local process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Exited(ProcessState),
    Left,
}

/// What the loop answers.
#[derive(Debug)]
pub enum Reply {
    Done,
    Closed(Option<Box<Memory>>),
    Joined(Result<JoinedProcess, detector::JoinError>),
    Monitored(Result<Monitored, MonitorRefusal>),
    Unmonitored(bool),
    Snapshot(Box<Snapshot>),
    Adopted(Option<JoinedProcess>),
    /// What was in the place before, or has no place: for the control thread to free.
    Lane(Option<Box<Lane>>),
    Sender(Option<Box<Sender>>),
    Told(Box<[u8]>),
    Standings {
        up: detector::HostSet,
        hold_us_up: detector::HostSet,
    },
    Frozen(Box<Frozen>),
    NotBegun(detector::RestartError),
}

/// A local process that was registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinedProcess {
    pub slot: u8,
    pub incarnation: u32,
    /// Names this registration for good, also when the host begins a new incarnation.
    pub cookie: u64,
    pub pbsize: u16,
}

/// A watch that was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Monitored {
    pub watch: u32,
    pub timeout_ns: u64,
    pub pbsize: u16,
    pub slot: u8,
    pub incarnation: u32,
    pub alive: Option<bool>,
}

/// Why a watch was not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MonitorRefusal {
    Detector(detector::MonitorError),
    /// All [`crate::frozen::WATCHES_MAX`] are in use.
    Full,
}

/// Something that happened, for the journal.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub struct Record {
    pub now_ns: u64,
    pub event: detector::Event,
}

/// Reports of trees waiting for the control thread: what is found and does not fit is found again if it lasts.
const REPORTS: usize = 256;

/// Shapes of other hosts waiting for the control thread; they are told again every second.
const SHAPES: usize = 64;

/// Both ends share this.
#[derive(Debug)]
pub struct Exchange {
    commands: ArrayQueue<Command>,
    replies: ArrayQueue<Reply>,
    records: ArrayQueue<Record>,
    reports: ArrayQueue<Report>,
    shapes: ArrayQueue<AnnouncedShape>,
    /// Wakes the loop.
    to_engine: OwnedFd,
    /// Wakes the control thread.
    to_control: OwnedFd,
    records_lost: AtomicU64,
    /// Of the loop, for whoever has to know that it turns.
    turns: AtomicU64,
    /// This host was excluded, and has not begun again.
    excluded: AtomicBool,
    /// Its machine was put back to a snapshot, or runs twice.
    put_back: AtomicBool,
    /// The generation of views that the loop needs on disk, and the one that is there.
    generation_asked: AtomicU32,
    generation_kept: AtomicU32,
    /// Why the loop has ended, or is given up.
    ended: OnceLock<String>,
}

/// The loop did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the agent's loop does not answer")]
pub struct EngineGone;

impl Exchange {
    /// Empty queues.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new() -> io::Result<Arc<Self>> {
        let eventfd = || rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Arc::new(Self {
            commands: ArrayQueue::new(COMMANDS),
            replies: ArrayQueue::new(COMMANDS),
            records: ArrayQueue::new(RECORDS),
            reports: ArrayQueue::new(REPORTS),
            shapes: ArrayQueue::new(SHAPES),
            to_engine: eventfd()?,
            to_control: eventfd()?,
            records_lost: AtomicU64::new(0),
            turns: AtomicU64::new(0),
            excluded: AtomicBool::new(false),
            put_back: AtomicBool::new(false),
            generation_asked: AtomicU32::new(0),
            generation_kept: AtomicU32::new(0),
            ended: OnceLock::new(),
        }))
    }

    /// Asks the loop and waits for its answer.
    ///
    /// # Errors
    /// [`EngineGone`].
    pub fn call(&self, command: Command) -> Result<Reply, EngineGone> {
        if self.ended().is_some() {
            return Err(EngineGone);
        }
        self.commands.push(command).map_err(|_| EngineGone)?;
        ring(&self.to_engine);
        let mut waited = Duration::ZERO;
        loop {
            if let Some(reply) = self.replies.pop() {
                return Ok(reply);
            }
            if waited >= REPLY_TIMEOUT {
                // An answer that comes later would be taken for that to another command.
                self.end(format!("it has answered nothing for {} s", REPLY_TIMEOUT.as_secs()));
            }
            if self.ended().is_some() {
                return Err(EngineGone);
            }
            let begun = Instant::now();
            let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(REPLY_STEP.subsec_nanos()) };
            // An interrupted wait is a short one.
            let _ = rustix::event::poll(&mut [PollFd::new(&self.to_control, PollFlags::IN)], Some(&timeout));
            waited += begun.elapsed().min(REPLY_STEP);
            self.quiet_control();
        }
    }

    /// The loop has ended by itself, or is given up: the agent has to end. The first reason stands.
    pub fn end(&self, why: String) {
        let _ = self.ended.set(why);
        ring(&self.to_control);
    }

    /// Why the loop has ended by itself.
    pub fn ended(&self) -> Option<&str> {
        self.ended.get().map(String::as_str)
    }

    /// The loop begins a turn.
    pub fn turn(&self) {
        // It is the only one that writes it.
        self.turns.store(self.turns.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Turns that the loop has begun.
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    /// The loop was excluded, or has begun again. A state and no event: no queue that is full, and no takeover, loses it.
    pub fn set_excluded(&self, excluded: bool) {
        self.excluded.store(excluded, Ordering::Release);
    }

    /// Whether this host has to begin again.
    pub fn is_excluded(&self) -> bool {
        self.excluded.load(Ordering::Acquire)
    }

    /// The loop has found that its machine was put back to a snapshot, or runs twice. A state, likewise.
    pub fn set_put_back(&self, put_back: bool) {
        self.put_back.store(put_back, Ordering::Release);
    }

    /// Whether this host stays fenced until people start it anew.
    pub fn is_put_back(&self) -> bool {
        self.put_back.load(Ordering::Acquire)
    }

    /// The loop goes on with views of this generation once it is on disk. It waits for nothing else meanwhile.
    pub fn ask_generation(&self, generation: u32) {
        if self.generation_asked.swap(generation, Ordering::AcqRel) != generation {
            ring(&self.to_control);
        }
    }

    /// What the loop needs on disk: a state, as [`Self::is_excluded`] is. 0: nothing.
    pub fn generation_asked(&self) -> u32 {
        self.generation_asked.load(Ordering::Acquire)
    }

    /// This generation is on disk, with all below.
    pub fn keep_generation(&self, generation: u32) {
        if self.generation_kept.fetch_max(generation, Ordering::AcqRel) < generation {
            ring(&self.to_engine);
        }
    }

    /// What is on disk, at the loop; 0 before it was ever asked for.
    pub fn generation_kept(&self) -> u32 {
        self.generation_kept.load(Ordering::Acquire)
    }

    /// Next command, at the loop.
    pub fn take_command(&self) -> Option<Command> {
        self.commands.pop()
    }

    /// Answers a command. The queue cannot be full: each command is waited for.
    pub fn answer(&self, reply: Reply) {
        let _ = self.replies.push(reply);
        ring(&self.to_control);
    }

    /// Notes an event for the journal; dropped and counted when the control thread is far behind.
    pub fn note(&self, record: Record) {
        if self.records.push(record).is_err() {
            self.records_lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes what the copies of packets tell of a tree; dropped when the control thread is far behind.
    pub fn report(&self, report: Report) {
        let _ = self.reports.push(report);
    }

    /// Notes what another host takes the cluster to be. Nobody is woken for it.
    pub fn tell_shape(&self, told: AnnouncedShape) {
        let _ = self.shapes.push(told);
    }

    /// Next shape of another host.
    pub fn take_shape(&self) -> Option<AnnouncedShape> {
        self.shapes.pop()
    }

    /// Next report of a tree.
    pub fn take_report(&self) -> Option<Report> {
        self.reports.pop()
    }

    /// Wakes the control thread if it has events to write down. Called a turn later than they were
    /// noted: that thread would compete for a core with the programs that were just told.
    pub fn wake_control(&self) {
        if !self.records.is_empty() || !self.reports.is_empty() {
            ring(&self.to_control);
        }
    }

    /// Next event for the journal.
    pub fn take_record(&self) -> Option<Record> {
        self.records.pop()
    }

    /// Events that the journal lacks.
    pub fn records_lost(&self) -> u64 {
        self.records_lost.load(Ordering::Relaxed)
    }

    /// Readable when the loop has something for the control thread.
    pub fn control_fd(&self) -> BorrowedFd<'_> {
        self.to_control.as_fd()
    }

    /// Readable when there is a command.
    pub fn engine_fd(&self) -> BorrowedFd<'_> {
        self.to_engine.as_fd()
    }

    /// Makes [`Exchange::control_fd`] quiet until the next event.
    pub fn quiet_control(&self) {
        quiet(&self.to_control);
    }

    /// Makes [`Exchange::engine_fd`] quiet until the next command.
    pub fn quiet_engine(&self) {
        quiet(&self.to_engine);
    }
}

pub(crate) fn ring(fd: &OwnedFd) {
    // A counter that is full is readable already.
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

pub(crate) fn quiet(fd: &OwnedFd) {
    let _ = rustix::io::read(fd, &mut [0u8; 8]);
}
