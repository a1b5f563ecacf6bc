// SPDX-License-Identifier: Apache-2.0
//! The messages between the control thread and the loop.
//!
//! All queues are bounded and without locks: commands to the loop, its replies, its records for the
//! journal, and its findings about trees. The loop never waits for the control thread. If the records'
//! queue is full, it drops the record and counts it; memory that it would have to free it hands back
//! instead.

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
use fide_types::{ClientSet, HostId, ProcessState};
use fide_wire::{AnnouncedShape, Keys, Name};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec},
    time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags},
};

use crate::{frozen::Frozen, lane::Lane, snapshot::Snapshot, timeout::Network, tree_report::Report};

/// Commands that may wait for the loop. The one control thread waits for each reply, so a handful would do.
const COMMANDS: usize = 16;
/// Events that may wait to be written to the journal: a second of the worst storm (64 hosts of 64 processes
/// dying together).
const RECORDS: usize = 8192;
/// The loop replies at its next turn; if it is silent for this long, it is given up.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// One wait for the reply. When the whole process is stopped, only one such step counts as waited.
const REPLY_STEP: Duration = Duration::from_millis(50);

/// Programs that had joined come back to a new agent within this time, if they ever do.
pub const REATTACH: Duration = Duration::from_secs(10);

/// How events reach one client.
#[derive(Debug)]
pub enum Channel {
    /// Through its own BPF ring, which is installed already.
    Ring,
    /// Through the inbox of its session; the timer wakes it (see [`wake`]).
    Inbox(OwnedFd),
}

/// Wakes a client without a ring: a timer that the loop sets to run out at once. The client shares the
/// descriptor and its flags, and may change them at will; setting a timer still waits for nobody.
/// Writing to an eventfd would wait once the client has filled it and cleared `O_NONBLOCK`. Writing to a
/// pipe would wait for a reader that is stopped in the middle by a page fault.
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

/// A client rings it when it has left a message for a lane, or a piggyback that it waits for.
///
/// # Errors
/// The kernel's.
pub(crate) fn doorbell() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// One client's memory, given to the loop when the session opens and back when it closes.
#[derive(Debug)]
pub struct Memory {
    pub region: AgentSession,
    pub channel: Channel,
    /// The client writes to it when it has left a message for a lane. Never read: the loop waits for its
    /// edges.
    pub doorbell: OwnedFd,
}

/// A command of the control thread to the loop.
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
        host: HostId,
        name: Option<Name>,
        wanted: detector::Wanted,
    },
    Unmonitor {
        client: u8,
        watch: u32,
    },
    /// The subject that a former agent reported to this watch as up.
    Former {
        client: u8,
        watch: u32,
        slot: u8,
        incarnation: u32,
        timeout_ns: u64,
    },
    Snapshot(Box<Snapshot>),
    SetKeys(Keys),
    /// From now on a plane's packets go to another tree.
    Aim {
        plane: u8,
        group: std::net::Ipv4Addr,
    },
    /// Sets the planned network between a peer and this host, which counts in the timeout.
    SetNetwork {
        host: HostId,
        network: Network,
    },
    /// Opens a lane in the place `handle`.
    OpenLane {
        handle: u8,
        lane: Box<Lane>,
    },
    /// From now on a lane takes the messages of these clients.
    ShareLane {
        handle: u8,
        clients: ClientSet,
    },
    /// From now on this sender sends over a lane's tree.
    AimLane {
        handle: u8,
        tree: u8,
        sender: Box<Sender>,
    },
    /// From now on a lane keeps to these terms.
    ChangeLane {
        handle: u8,
        terms: Terms,
        type_of_service: u8,
    },
    CloseLane {
        handle: u8,
    },
    /// Whether a client gets the messages that arrive for a service.
    Listen {
        client: u8,
        service: u8,
        on: bool,
    },
    /// Which hosts are up, and for which hosts this one is up.
    Standings,
    /// Delivers a record to these clients.
    Deliver {
        clients: ClientSet,
        record: EventRecord,
        data: Box<[u8]>,
    },
    /// The largest packet that every plane carries.
    SetPayloadMax(usize),
    Restart {
        incarnation: u32,
    },
    /// From now on a process that is under watch already belongs to this client.
    Adopt {
        slot: u8,
        client: u8,
        beat_timeout_ns: u64,
    },
    Leave,
    /// Writes down the state, then only repeats the last heartbeat: another agent takes over.
    Freeze,
    /// The other agent did not take over: goes on.
    Thaw,
    Stop,
    /// A fault that a test has planted.
    Fault(crate::fault::Fault),
}

/// How a local process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Exited(ProcessState),
    Left,
}

/// The loop's reply.
#[derive(Debug)]
pub enum Reply {
    Done,
    Closed(Option<Box<Memory>>),
    Joined(Result<JoinedProcess, detector::JoinError>),
    Monitored(Result<Monitored, MonitorRefusal>),
    Unmonitored(bool),
    Snapshot(Box<Snapshot>),
    Adopted(Option<JoinedProcess>),
    /// The lane that was in the place before, or one without a place: the control thread frees it.
    Lane(Option<Box<Lane>>),
    Sender(Option<Box<Sender>>),
    Delivered(Box<[u8]>),
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
    /// Names this registration for good, even when the host begins a new incarnation.
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

/// Reports of trees that may wait for the control thread. A finding that does not fit is found again if it
/// lasts.
const REPORTS: usize = 256;

/// Shapes of other hosts that may wait for the control thread; each host sends its shape every second.
const SHAPES: usize = 64;

/// Shared by both ends.
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
    /// Turns of the loop, so that others can see that it turns.
    turns: AtomicU64,
    /// This host was excluded, and has not begun again.
    excluded: AtomicBool,
    /// Its machine was put back to a snapshot, or runs twice.
    put_back: AtomicBool,
    /// The generation of views that the loop needs on disk, and the one that is stored.
    generation_asked: AtomicU32,
    generation_kept: AtomicU32,
    /// Why the loop has ended, or was given up.
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

    /// Has the loop carry out a command, and waits for its reply.
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
                // A reply that comes later would be taken for the reply to another command.
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

    /// The loop has ended by itself, or was given up: the agent has to end. The first reason stands.
    pub fn end(&self, why: String) {
        let _ = self.ended.set(why);
        ring(&self.to_control);
    }

    /// Why the loop has ended, if it has.
    pub fn ended(&self) -> Option<&str> {
        self.ended.get().map(String::as_str)
    }

    /// The loop begins a turn.
    pub fn turn(&self) {
        // Only the loop writes it.
        self.turns.store(self.turns.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Turns that the loop has begun.
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    /// The loop was excluded, or has begun again. This is a state and no event, so that neither a full
    /// queue nor a takeover can lose it.
    pub fn set_excluded(&self, excluded: bool) {
        self.excluded.store(excluded, Ordering::Release);
    }

    /// Whether this host has to begin again.
    pub fn is_excluded(&self) -> bool {
        self.excluded.load(Ordering::Acquire)
    }

    /// The loop has found that its machine was put back to a snapshot, or runs twice. Also a state.
    pub fn set_put_back(&self, put_back: bool) {
        self.put_back.store(put_back, Ordering::Release);
    }

    /// Whether this host stays fenced until somebody starts it anew.
    pub fn is_put_back(&self) -> bool {
        self.put_back.load(Ordering::Acquire)
    }

    /// The loop needs this generation of views on disk, and does everything else meanwhile.
    pub fn ask_generation(&self, generation: u32) {
        if self.generation_asked.swap(generation, Ordering::AcqRel) != generation {
            ring(&self.to_control);
        }
    }

    /// The generation that the loop needs on disk: a state, like [`Self::is_excluded`]. 0: none.
    pub fn generation_asked(&self) -> u32 {
        self.generation_asked.load(Ordering::Acquire)
    }

    /// This generation is stored, with all below.
    pub fn keep_generation(&self, generation: u32) {
        if self.generation_kept.fetch_max(generation, Ordering::AcqRel) < generation {
            ring(&self.to_engine);
        }
    }

    /// The generation that is stored, as the loop sees it; 0 before it ever asked for one.
    pub fn generation_kept(&self) -> u32 {
        self.generation_kept.load(Ordering::Acquire)
    }

    /// The next command, for the loop.
    pub fn take_command(&self) -> Option<Command> {
        self.commands.pop()
    }

    /// Replies to a command. The queue cannot be full: each command is waited for.
    pub fn answer(&self, reply: Reply) {
        let _ = self.replies.push(reply);
        ring(&self.to_control);
    }

    /// Notes an event for the journal; it is dropped and counted when the control thread is far behind.
    pub fn note(&self, record: Record) {
        if self.records.push(record).is_err() {
            self.records_lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes what the copies of packets show of a tree; it is dropped when the control thread is far
    /// behind.
    pub fn report(&self, report: Report) {
        let _ = self.reports.push(report);
    }

    /// Passes on the shape that another host has sent. No thread is woken for it.
    pub fn pass_shape(&self, shape: AnnouncedShape) {
        let _ = self.shapes.push(shape);
    }

    /// The next shape of another host.
    pub fn take_shape(&self) -> Option<AnnouncedShape> {
        self.shapes.pop()
    }

    /// The next report of a tree.
    pub fn take_report(&self) -> Option<Report> {
        self.reports.pop()
    }

    /// Wakes the control thread if it has events to write down. Called a turn later than they were noted:
    /// that thread would compete for a core with the programs that were just notified.
    pub fn wake_control(&self) {
        if !self.records.is_empty() || !self.reports.is_empty() {
            ring(&self.to_control);
        }
    }

    /// The next event for the journal.
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
