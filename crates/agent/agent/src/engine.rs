// SPDX-License-Identifier: Apache-2.0
//! The loop's state machine: the hot path of an agent.
//!
//! A turn takes in what arrived, lets the detector decide, sends what is due and delivers events to
//! clients:
//!
//! ```text
//! slots, ring, sockets, windows ─► detector ─► planes
//!            commands, outboxes ─►     └──► clients' rings, alive table, journal
//! ```
//!
//! | file | holds |
//! |---|---|
//! | [`run`] | the thread around it: it reads the clocks, waits, and has the engine turn |
//! | `receive` | what arrives: heartbeats in slots, records in the wake ring, datagrams |
//! | `commands` | the control thread's commands; `outboxes`: messages that clients leave in their memory |
//! | `deliver` | the detector's events, to clients; `undelivered`: ends that found a client's ring full |
//! | `publish` | packets on every plane, the alive table, the lease |
//! | `lanes` | programs' lanes |
//! | `freeze`, `repeat` | another agent takes over |
//! | `shape` | hosts that are configured otherwise |
//! | `sessions`, `owners`, `watches`, `bells` | clients: their memory, their processes, their watches, their doorbells |
//! | `timing`, `arrivals`, `gaps` | peers: their timeouts, their newest heartbeats, the gaps between them |
//! | `formers` | ends of processes and hosts that an agent before this one reported up |
//! | `ports` | senders, the kernel's programs, the set of descriptors that is waited for |
//!
//! **Invariant:** no clock. A function that needs the time is given [`Now`]; a turn asks its [`Clocks`] for
//! it before each input and each packet.
//!
//! **Invariant:** it allocates nothing, logs nothing and takes no lock. Every queue and loop has a bound
//! named here; work beyond the bound waits for the next turn, which then begins at once.
//!
//! It sleeps in one system call, between two turns. `docs/internals/agent-loop.md` lists its other system
//! calls, and why none of them waits; a test holds it to that list.

mod arrivals;
mod bells;
mod commands;
mod deliver;
mod formers;
mod freeze;
mod gaps;
mod lanes;
mod outboxes;
mod owners;
mod ports;
mod publish;
mod receive;
mod repeat;
pub mod run;
mod sessions;
mod shape;
#[cfg(test)]
mod tests;
mod timing;
mod undelivered;
mod watches;

use std::{io, sync::Arc};

use fide_agent_api::table::{AliveTable, NameBytes};
use fide_detector::{Detector, HostSet, ProcessView};
use fide_net::link::{Polled, Receiver, Sender};
use fide_net::pace::Mode;
use fide_types::{HostId, MAX_PROCESSES, PAYLOAD_MAX, ProcessRef};
use fide_wire::{Keys, Name, Shape};

use crate::{
    clock::{Clock, Clocks, Now},
    command::Exchange,
    snapshot::EngineCounters,
    timeout::Timeouts,
    vote::{VoteError, Votes},
};
use arrivals::Arrivals;
use bells::Bells;
use formers::Formers;
use gaps::GapCounts;
use lanes::Lanes;
use owners::Owners;
pub use ports::Kernel;
use ports::{Ports, TOKEN_COMMAND};
use repeat::Repeat;
use sessions::Sessions;
use timing::Timing;
use undelivered::Undelivered;
use watches::Watches;

/// Records taken from the wake ring in one turn.
const RECORDS_PER_TURN: usize = 256;
/// Datagrams taken from one receiver, or one plane of memory, in one turn.
const DATAGRAMS_PER_TURN: usize = 256;
/// Commands carried out in one turn.
const COMMANDS_PER_TURN: usize = 4;
/// Watches of a client that is gone, forgotten in one turn: for each of them, all watches of this host are
/// searched.
const FORGOTTEN_PER_TURN: usize = 16;
/// Events delivered in one turn.
const EVENTS_PER_TURN: usize = 512;
/// The part of them that is delivered before the turn's packets leave: each delays the packets by one
/// system call.
const EVENTS_BEFORE_PACKETS: usize = 2;
/// Piggybacks taken from one client's outbox before one heartbeat.
const PIGGYBACKS_PER_TURN: usize = 16;
/// Packets sent in one turn: a notice for each process, and a heartbeat.
const TRANSMITS_PER_TURN: usize = 65;

/// The parts of the loop.
pub struct Parts {
    pub me: HostId,
    pub members: u16,
    /// Hosts whose silence matters here.
    pub monitors: HostSet,
    pub heartbeat_ns: u64,
    pub timeouts: Timeouts,
    pub detector: Detector,
    pub senders: Vec<Sender>,
    /// Planes are planned trees, not networks.
    pub trees: bool,
    /// Whole chunks of damaged packets are delivered.
    pub salvage: bool,
    /// Per plane; `None` where the receive program takes the packets.
    pub receivers: Vec<Option<Receiver>>,
    /// Planes of memory, which follow those.
    pub polled: Vec<Box<dyn Polled>>,
    /// The longest wait between two looks into that memory.
    pub poll_ns: u64,
    pub kernel: Option<Kernel>,
    pub table: AliveTable,
    /// Host names by id, as records carry them.
    pub names: Vec<NameBytes>,
    /// Keys of the tags, derived from the plain ones.
    pub keys: Keys,
    /// The keys as in the file.
    pub plain: Keys,
    /// The shared part of this host's configuration.
    pub shape: Shape,
    pub name: Name,
    pub exchange: Arc<Exchange>,
    pub mode: Mode,
    pub own_lateness_max_ns: u64,
    /// From an earlier, long measurement: it counts whatever the loop itself observes.
    pub own_lateness_stored_ns: u64,
    /// Only of a witness, whose loop waits for the disk.
    pub votes: Option<Votes>,
    /// The detector's clock, with what the agent before knew of it.
    pub clock: Clock,
}

/// The values that do not change while the loop runs.
struct Facts {
    me: HostId,
    members: u16,
    /// Hosts whose silence matters here.
    monitors: HostSet,
    heartbeat_ns: u64,
    /// The longest wait between two looks into planes of memory.
    poll_ns: u64,
    /// Planes are planned trees, not networks.
    trees: bool,
    /// Whole chunks of damaged packets are delivered.
    salvage: bool,
    /// Host names by id, as records carry them.
    names: Vec<NameBytes>,
    /// The shared part of this host's configuration.
    shape: Shape,
    name: Name,
}

impl Facts {
    /// Every host of the cluster.
    fn hosts(&self) -> impl Iterator<Item = u16> + use<> {
        1..=self.members
    }

    /// Every host but this one.
    fn peers(&self) -> impl Iterator<Item = u16> + use<> {
        let me = self.me;
        self.hosts().filter(move |host| *host != me)
    }

    /// Every host, and every process slot of each.
    fn subjects(&self) -> impl Iterator<Item = ProcessRef> + use<> {
        let slots = |host| process_slots().map(move |slot| ProcessRef::new(host, slot));
        self.hosts().flat_map(move |host| slots(host).chain([ProcessRef::of_host(host)]))
    }
}

/// Every process slot.
fn process_slots() -> impl Iterator<Item = u8> {
    0..u8::try_from(MAX_PROCESSES).expect("64")
}

/// The loop's state machine.
pub struct Engine {
    facts: Facts,
    detector: Detector,
    clock: Clock,
    ports: Ports,
    table: AliveTable,
    exchange: Arc<Exchange>,
    /// Keys of the tags, derived from `plain`.
    keys: Keys,
    /// The keys as in the file.
    plain: Keys,
    votes: Option<Votes>,

    timing: Timing,
    arrivals: Arrivals,
    /// Used only where no receive program takes the packets and counts.
    gaps: GapCounts,
    datagram: Box<[u8; PAYLOAD_MAX + 1]>,

    sessions: Sessions,
    owners: Owners,
    watches: Watches,
    bells: Bells,
    undelivered: Undelivered,
    formers: Formers,
    lanes: Lanes,
    /// The client whose session is being closed.
    closing: Option<u8>,

    payload: Box<[u8; PAYLOAD_MAX]>,
    /// The last heartbeat, and whether this loop only repeats it.
    repeat: Repeat,
    /// Notices sent since the last heartbeat.
    notices_sent: usize,
    shape_next_ns: u64,

    counters: EngineCounters,
    started_ns: u64,
    /// An exit went out in this turn: the rest waits for the next heartbeat.
    urgent_turn: bool,
    busy_turn: bool,
    stopping: bool,
    /// Why the loop stops by itself.
    failed: Option<VoteError>,
}

impl Engine {
    /// Puts the parts together.
    ///
    /// # Errors
    /// The kernel's, if it has no epoll descriptor left.
    pub fn new(now: Now, parts: Parts) -> io::Result<Self> {
        let ports = Ports::new(parts.mode, parts.senders, parts.receivers, parts.polled, parts.kernel)?;
        ports.waiter.add(parts.exchange.engine_fd(), TOKEN_COMMAND)?;
        let timing = Timing::new(
            now.raw_ns,
            parts.timeouts,
            parts.own_lateness_max_ns,
            parts.own_lateness_stored_ns,
            parts.detector.config().timeout_ns,
        );
        Ok(Self {
            facts: Facts {
                me: parts.me,
                members: parts.members,
                monitors: parts.monitors,
                heartbeat_ns: parts.heartbeat_ns,
                poll_ns: parts.poll_ns,
                trees: parts.trees,
                salvage: parts.salvage,
                names: parts.names,
                shape: parts.shape,
                name: parts.name,
            },
            detector: parts.detector,
            clock: parts.clock,
            ports,
            table: parts.table,
            exchange: parts.exchange,
            keys: parts.keys,
            plain: parts.plain,
            votes: parts.votes,
            timing,
            arrivals: Arrivals::new(),
            gaps: GapCounts::new(),
            datagram: Box::new([0; PAYLOAD_MAX + 1]),
            sessions: Sessions::new(),
            owners: Owners::new(),
            watches: Watches::new(),
            bells: Bells::new(parts.heartbeat_ns),
            undelivered: Undelivered::new(),
            formers: Formers::new(),
            lanes: Lanes::new(),
            closing: None,
            payload: Box::new([0; PAYLOAD_MAX]),
            repeat: Repeat::new(),
            notices_sent: 0,
            shape_next_ns: 0,
            counters: EngineCounters::default(),
            started_ns: now.raw_ns,
            urgent_turn: false,
            busy_turn: false,
            stopping: false,
            failed: None,
        })
    }

    /// A witness sends only what follows from a stored vote; it ends if the disk fails.
    fn has_stored_its_vote(&mut self) -> bool {
        let Some(votes) = &mut self.votes else { return true };
        match votes.store(&self.detector.vote()) {
            Ok(()) => true,
            Err(error) => {
                (self.failed, self.stopping) = (Some(error), true);
                false
            }
        }
    }

    /// The slot of a process by name: the live one, else the one that ended last.
    fn find(&self, host: HostId, name: Name) -> Option<(u8, ProcessView)> {
        process_slots()
            .filter_map(|slot| Some((slot, self.detector.process(host, slot)?)))
            .filter(|(_, process)| process.name == name)
            .max_by_key(|(_, process)| (!process.state.is_final(), process.incarnation))
    }

    /// One turn.
    fn turn(&mut self, clocks: &mut impl Clocks) {
        self.busy_turn = false;
        self.counters.turns += 1;
        self.exchange.turn();
        // Before anything is believed that arrived meanwhile.
        self.look_at_clocks(clocks);
        if self.repeat.next_ns().is_some() {
            self.commands(clocks);
            self.repeat_heartbeat(clocks.now());
            return;
        }
        // An exit goes out before anything else is handled.
        self.drain_ring(clocks);
        if std::mem::take(&mut self.urgent_turn) && clocks.now().raw_ns < self.detector.next_heartbeat_ns() {
            return;
        }
        self.exchange.wake_control();
        self.read_slots(clocks);
        self.drain_receivers(clocks);
        self.look_into_memory(clocks);
        self.detector.has_kept_generation(self.exchange.generation_kept());
        self.detector.tick(clocks.now().raw_ns);
        self.exchange.ask_generation(self.detector.generation_to_keep());
        // Before a command closes the session of a program that has just ended.
        self.drain_outboxes(clocks.now());
        self.commands(clocks);
        self.watch_beats(clocks.now());
        if !self.has_stored_its_vote() {
            return;
        }
        // A program that waits for one event, such as a decision, must not wait for the packets too.
        self.deliver_events(clocks.now(), EVENTS_BEFORE_PACKETS);
        self.transmit(clocks);
        self.say_shape(clocks.now());
        self.serve_lanes(clocks);
        if self.deliver_events(clocks.now(), EVENTS_PER_TURN) {
            self.busy_turn = true;
        }
        self.deliver_former_ends(clocks.now());
        self.retry_undelivered(clocks.now());
        self.publish(clocks);
    }
}
