// SPDX-License-Identifier: Apache-2.0
//! The loop's state for the control thread: for `status` and the metrics.

use fide_agent_api::status::TimeoutParts;
use fide_bpf::intf::Stats;
use fide_detector::{Counters, HostSet, PeerState, PeerView, ProcessView};
use fide_lane::{LANES_MAX, Sent, Terms};
use fide_shm::gaps::Gaps;
use fide_types::{HostId, host_index};
use fide_wire::{MAX_HOSTS, MAX_PROCESSES, Name, ViewId};

use crate::{clock::Doubts, timeout::Network};

/// Filled by the loop in one go. Allocated by the control thread, because the loop allocates nothing.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub now_ns: u64,
    /// The same moment in CLOCK_MONOTONIC ns.
    pub mono_ns: u64,
    pub started_ns: u64,
    pub incarnation: u32,
    pub lease_until_ns: u64,
    /// Doubts that its clocks have raised.
    pub doubts: Doubts,
    /// Whether the processor's counter is believed.
    pub counter: &'static str,
    pub fenced: bool,
    pub view: ViewId,
    pub view_members: HostSet,
    pub peers: Vec<Option<PeerView>>,
    pub processes: Vec<Option<ProcessView>>,
    pub counters: Counters,
    pub engine: EngineCounters,
    pub kernel: Option<Stats>,
    /// Largest delay above the lowest, per peer.
    pub jitter_ns: Vec<u64>,
    /// Gaps between the heartbeats of each peer, in CLOCK_MONOTONIC ns.
    pub gaps: Vec<Gaps>,
    /// The parts of the timeout, unless the configuration fixes it.
    pub timeouts: Vec<Option<TimeoutParts>>,
    /// The planned network's part, by host.
    pub networks: Vec<Network>,
    /// Lanes of this host's programs, by handle.
    pub lanes: Vec<Option<LaneView>>,
    pub own_lateness_max_ns: u64,
}

/// The loop's own counters.
#[derive(Clone, Copy, Debug, Default)]
pub struct EngineCounters {
    pub turns: u64,
    pub sends_failed: u64,
    pub malformed: u64,
    pub bad_tag: u64,
    pub refused: u64,
    pub events_delivered: u64,
    pub events_undelivered: u64,
    pub outbox_broken: u64,
    pub piggybacks_declined: u64,
    pub slot_reads_failed: u64,
    pub ring_broken: u64,
    /// Heartbeats that were late because a client's session was being closed. There should be none.
    pub session_end_skipped: u64,
    /// Notices of exits that were left to the next heartbeat.
    pub notices_held: u64,
    /// Clients that rang too often in a period.
    pub bells_muted: u64,
    pub lane_packets_sent: u64,
    pub lane_packets_received: u64,
    /// Arrived over no tree.
    pub lane_packets_lost: u64,
    pub lane_chunks_damaged: u64,
    /// Dropped, because they were beyond their lane's contract.
    pub lane_messages_exceeded: u64,
    /// Dropped, because they were for no lane of their program.
    pub lane_messages_stray: u64,
    /// Arrived for a service to which nobody listens.
    pub lane_messages_unheard: u64,
}

/// The loop's state of a lane.
#[derive(Clone, Copy, Debug)]
pub struct LaneView {
    pub name: Name,
    pub terms: Terms,
    /// Trees in use.
    pub trees: usize,
    /// Programs that share it.
    pub clients: u32,
    pub sent: Sent,
}

impl Snapshot {
    /// Room for everything that the loop may fill in.
    #[must_use]
    pub fn empty() -> Box<Self> {
        Box::new(Self {
            now_ns: 0,
            mono_ns: 0,
            started_ns: 0,
            incarnation: 0,
            lease_until_ns: 0,
            doubts: Doubts::default(),
            counter: "",
            fenced: true,
            view: ViewId::NONE,
            view_members: HostSet::EMPTY,
            peers: vec![None; MAX_HOSTS],
            processes: vec![None; MAX_HOSTS * MAX_PROCESSES],
            counters: Counters::default(),
            engine: EngineCounters::default(),
            kernel: None,
            jitter_ns: vec![0; MAX_HOSTS],
            gaps: vec![Gaps::NONE; MAX_HOSTS],
            timeouts: vec![None; MAX_HOSTS],
            networks: vec![Network::default(); MAX_HOSTS],
            lanes: vec![None; LANES_MAX],
            own_lateness_max_ns: 0,
        })
    }

    /// All processes that one host ever had.
    pub fn processes_of(&self, host: HostId) -> impl Iterator<Item = (u8, &ProcessView)> {
        let first = host_index(host) * MAX_PROCESSES;
        (0u8..)
            .zip(&self.processes[first..first + MAX_PROCESSES])
            .filter_map(|(slot, view)| Some((slot, view.as_ref()?)))
    }

    /// The process in a slot of one host, if there ever was one.
    pub fn process(&self, host: HostId, slot: u8) -> Option<&ProcessView> {
        let first = usize::from(host).checked_sub(1)? * MAX_PROCESSES;
        self.processes.get(first + usize::from(slot))?.as_ref()
    }

    /// Name of a peer's state as `status` shows it.
    #[must_use]
    pub fn state_name(state: PeerState) -> &'static str {
        match state {
            PeerState::Unknown => "unknown",
            PeerState::Up => "up",
            PeerState::Dead => "dead",
            PeerState::Left => "left",
        }
    }
}
