// SPDX-License-Identifier: Apache-2.0
//! The loop: the hot path of an agent, on one pinned thread.
//!
//! A turn reads what arrived, lets the detector think, sends what is due and tells who waits:
//!
//! ```text
//! slots, ring, sockets ─► detector ─► planes
//!      commands, outboxes ─►     └──► clients' rings, alive table, journal
//! ```
//!
//! It allocates nothing, logs nothing and takes no lock. Every queue and loop has a bound named
//! here; what is left at the bound waits for the next turn, which then begins at once.
//!
//! It sleeps in one system call, between two turns. Which others it makes, and why none of them waits, is in
//! `docs/agent-loop.md`; a test holds it to that list.

mod clocks;
mod former;
mod freeze;
mod gaps;
mod input;
mod lanes;
mod output;
mod owed;
mod sessions;
mod shape;
mod tell;
#[cfg(test)]
mod tests;
mod watches;

use std::{io, os::fd::AsFd, sync::Arc};

use fide_agent_api::table::{AliveTable, NameBytes};
use fide_bpf::Receive;
use fide_detector::{Detector, HostSet};
use fide_lane::Copies;
use fide_net::jitter::{Recent, Spread};
use fide_net::link::{Receiver, Sender};
use fide_net::pace::{Mode, Ready, Waiter};
use fide_shm::bpf_ring::BpfRing;
use fide_shm::gaps::Gaps;
use fide_sys::clock::{mono_ns, raw_ns};
use fide_wire::{Keys, MAX_CLIENTS, MAX_HOSTS, MAX_PLANES, MAX_PROCESSES, Name, PAYLOAD_MAX, Shape};

use crate::{
    clock::Clock,
    command::Exchange,
    snapshot::EngineCounters,
    timeout::{Network, Timeouts},
    vote::{VoteError, Votes},
};
use former::Formers;
use freeze::Repeat;
pub use freeze::{Frozen, ResumeError};
use lanes::Lanes;
pub use lanes::{Lane, LaneCounters};
use owed::Owed;
use sessions::{Owner, Session};
pub use watches::WATCHES_MAX;
use watches::Watches;

/// Records taken from the wake ring in one turn.
const RECORDS_PER_TURN: usize = 256;
/// Datagrams taken from one receiver in one turn.
const DATAGRAMS_PER_TURN: usize = 256;
/// Commands carried out in one turn.
const COMMANDS_PER_TURN: usize = 4;
/// Watches of a client that is gone, forgotten in one turn: each looks at all watches of this host.
const FORGOTTEN_PER_TURN: usize = 16;
/// Events told in one turn.
const EVENTS_PER_TURN: usize = 512;
/// Of these, before the turn's packets leave: each delays them by one system call.
const EVENTS_BEFORE_PACKETS: usize = 2;
/// Piggybacks taken from one client's outbox before one heartbeat.
const PIGGYBACKS_PER_TURN: usize = 16;
/// Packets sent in one turn: a notice for each process, and a heartbeat.
const TRANSMITS_PER_TURN: usize = 65;
/// Longest wait between two turns, so that a lost wake-up costs no more than this.
const IDLE_NS: u64 = 100_000_000;

const TOKEN_COMMAND: u64 = 0;
const TOKEN_RING: u64 = 1;
const TOKEN_SOCKET: u64 = 2;
/// Of the first client's doorbell, the others follow: it has left something for one of its lanes, or a piggyback that it waits for.
const TOKEN_DOORBELL: u64 = 64;
/// Rings of one client in a heartbeat's period that the loop wakes for; what it leaves besides waits for the next heartbeat.
const RINGS_MAX: u32 = 4;
/// The same of all clients.
const RINGS_ALL_MAX: u32 = 16;

/// What the loop is made of.
pub struct Parts {
    pub me: u16,
    pub members: u16,
    /// Hosts whose silence matters here.
    pub monitors: HostSet,
    pub heartbeat_ns: u64,
    pub timeouts: Timeouts,
    pub detector: Detector,
    pub senders: Vec<Sender>,
    /// Planes are planned trees, not networks.
    pub trees: bool,
    /// Whole chunks of damaged packets are told.
    pub salvage: bool,
    /// Per plane; `None` where the receive program takes the packets.
    pub receivers: Vec<Option<Receiver>>,
    pub kernel: Option<Kernel>,
    pub table: AliveTable,
    /// Host names by id, as records carry them.
    pub names: Vec<NameBytes>,
    /// Of tags, derived from the plain ones.
    pub keys: Keys,
    /// As they are in the file.
    pub plain: Keys,
    /// What this host takes the cluster to be.
    pub shape: Shape,
    pub name: Name,
    pub exchange: Arc<Exchange>,
    pub mode: Mode,
    pub own_lateness_max_ns: u64,
    /// Measured before, for long: it counts whatever the loop sees.
    pub own_lateness_stored_ns: u64,
    /// Of a witness. Its loop waits for the disk.
    pub votes: Option<Votes>,
    /// The detector's clock, and what of it the agent before knew.
    pub clock: Clock,
}

/// The loop's side of the BPF programs.
pub struct Kernel {
    pub receive: Receive,
    pub ring: BpfRing,
    /// Whether heartbeats come through the receive program.
    pub xdp: bool,
}

/// What the loop has seen of one peer's planes.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    seq: [u64; MAX_PLANES],
    incarnation: u32,
    /// By plane: one may take longer than the other, which is no jitter.
    spreads: [Spread; MAX_PLANES],
    /// As the controller has planned it.
    network: Network,
    copies: Copies,
}

impl Seen {
    /// The most that its heartbeats were seen to vary on any plane.
    fn jitter_max_ns(&self) -> u64 {
        self.spreads.iter().map(Spread::jitter_max_ns).max().unwrap_or(0)
    }

    /// How much later one copy of a packet may be than another: what the network may take beyond its least, and what a host
    /// may be late between sending two.
    fn late_max_ns(&self, timeouts: &Timeouts) -> u64 {
        self.network.jitter_max_ns + timeouts.stall_slack_ns(self.jitter_max_ns())
    }
}

/// The loop.
pub struct Engine {
    parts: Parts,
    waiter: Waiter,
    sessions: Box<[Option<Session>; MAX_CLIENTS]>,
    watches: Watches,
    owners: Box<[Option<Owner>; MAX_PROCESSES]>,
    next_cookie: u64,
    /// Whose session is being closed.
    closing: Option<u8>,
    lanes: Lanes,
    seen: Box<[Seen; MAX_HOSTS]>,
    /// By host; where the receive program takes the packets, it counts.
    gaps: Vec<Gaps>,
    payload: Box<[u8; PAYLOAD_MAX]>,
    datagram: Box<[u8; PAYLOAD_MAX + 1]>,
    counters: EngineCounters,
    started_ns: u64,
    /// An exit went out in this turn: the rest waits for the next heartbeat.
    urgent_turn: bool,
    /// Clients that have rung in this period, by bits, how often all together, and when they are heard again.
    rung: u64,
    rings: u32,
    bells_due_ns: u64,
    /// Since the last heartbeat.
    notices_sent: usize,
    ring_full_seen: u64,
    owed: Owed,
    /// How late this loop was of late.
    own: Recent,
    /// No timeout falls below this.
    timeout_min_ns: u64,
    shape_next_ns: u64,
    formers: Formers,
    busy_turn: bool,
    stopping: bool,
    /// Why it stops by itself.
    failed: Option<VoteError>,
    /// The last heartbeat, and whether it is all that is still sent.
    repeat: Repeat,
}

impl Engine {
    /// Puts the parts together.
    ///
    /// # Errors
    /// The kernel's, if it has no epoll descriptor left.
    pub fn new(parts: Parts) -> io::Result<Self> {
        let waiter = Waiter::new(parts.mode)?;
        waiter.add(parts.exchange.engine_fd(), TOKEN_COMMAND)?;
        if let Some(kernel) = &parts.kernel {
            waiter.add(kernel.receive.wake_fd(), TOKEN_RING)?;
        }
        for receiver in parts.receivers.iter().flatten() {
            waiter.add(receiver.as_fd(), TOKEN_SOCKET)?;
        }
        Ok(Self {
            waiter,
            sessions: Box::new([const { None }; MAX_CLIENTS]),
            watches: Watches::new(),
            owners: Box::new([None; MAX_PROCESSES]),
            next_cookie: 0,
            closing: None,
            lanes: Lanes::new(),
            seen: Box::new([Seen::default(); MAX_HOSTS]),
            gaps: vec![Gaps::NONE; MAX_HOSTS],
            payload: Box::new([0; PAYLOAD_MAX]),
            datagram: Box::new([0; PAYLOAD_MAX + 1]),
            counters: EngineCounters::default(),
            started_ns: raw_ns(),
            urgent_turn: false,
            rung: 0,
            rings: 0,
            bells_due_ns: 0,
            notices_sent: 0,
            ring_full_seen: 0,
            owed: Owed::new(),
            own: Recent::begin(raw_ns(), parts.timeouts.own_lateness_ns),
            timeout_min_ns: parts
                .timeouts
                .least_ns(parts.own_lateness_stored_ns)
                .min(parts.detector.config().timeout_ns),
            shape_next_ns: 0,
            formers: Formers::new(),
            busy_turn: false,
            stopping: false,
            failed: None,
            repeat: Repeat::new(),
            parts,
        })
    }

    /// Turns until told to stop, in a thread that is isolated already. Returns the parts.
    ///
    /// # Errors
    /// The kernel's, if waiting fails.
    pub fn run(mut self) -> io::Result<Parts> {
        // Of one that was taken over.
        self.publish_exclusion();
        self.publish_me();
        let mut ready = Ready::default();
        while !self.stopping {
            self.turn();
            let now = mono_ns();
            let deadline = match self.repeat.next_ns() {
                Some(next_ns) => self.parts.clock.mono_of(next_ns),
                None if self.busy_turn => now,
                None => {
                    let due_ns = self.parts.clock.mono_of(self.parts.detector.poll_timeout());
                    due_ns.min(self.lanes.due_ns()).min(now + IDLE_NS)
                }
            };
            self.waiter.wait(deadline, &mut ready)?;
            // Also where something came meanwhile, if it took longer than that.
            let woken = mono_ns();
            if deadline > now && woken >= deadline {
                self.note_lateness(woken - deadline);
            }
            if ready.tokens().any(|token| token == TOKEN_COMMAND) {
                self.parts.exchange.quiet_engine();
            }
            ready.tokens().filter_map(|token| token.checked_sub(TOKEN_DOORBELL)).for_each(|client| self.rung(client));
        }
        match self.failed.take() {
            Some(error) => Err(io::Error::other(error)),
            None => Ok(self.parts),
        }
    }

    /// A witness says nothing that is not on its disk; without its disk it ends.
    fn has_stored_its_vote(&mut self) -> bool {
        let Some(votes) = &mut self.parts.votes else { return true };
        match votes.store(&self.parts.detector.vote()) {
            Ok(()) => true,
            Err(error) => {
                (self.failed, self.stopping) = (Some(error), true);
                false
            }
        }
    }

    /// One turn.
    fn turn(&mut self) {
        self.busy_turn = false;
        self.counters.turns += 1;
        self.parts.exchange.turn();
        // Before anything that came meanwhile is believed.
        self.look_at_clocks();
        if self.repeat.next_ns().is_some() {
            self.commands();
            self.repeat_heartbeat();
            return;
        }
        // An exit goes out before anything else is looked at.
        self.drain_ring();
        if std::mem::take(&mut self.urgent_turn) && raw_ns() < self.parts.detector.next_heartbeat_ns() {
            return;
        }
        self.parts.exchange.wake_control();
        self.read_slots();
        self.drain_receivers();
        self.parts.detector.has_kept_generation(self.parts.exchange.generation_kept());
        self.parts.detector.tick(raw_ns());
        self.parts.exchange.ask_generation(self.parts.detector.generation_to_keep());
        // Before a command closes the session of a program that has just ended.
        self.drain_outboxes();
        self.commands();
        self.watch_beats(raw_ns());
        if !self.has_stored_its_vote() {
            return;
        }
        // Whoever waits for one event, as for a decision, does not wait for packets too.
        self.tell_events(EVENTS_BEFORE_PACKETS);
        self.transmit();
        self.say_shape();
        self.serve_lanes();
        self.busy_turn |= self.tell_events(EVENTS_PER_TURN);
        self.tell_formers(raw_ns());
        self.retry_undelivered();
        self.publish();
    }
}
