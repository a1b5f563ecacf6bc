// SPDX-License-Identifier: Apache-2.0
//! The detector: its parts, its clock, its lease, and what callers can ask it.

use crate::config::{Config, ConfigError};
use crate::events::Events;
use crate::lease::{self, Lease, SentLog};
use crate::life::Life;
use crate::peer::Peer;
use crate::peers::Peers;
use crate::piggyback::{Pool, Queues};
use crate::promises::Promises;
use crate::roster::{Local, Locals, Remote, Remotes};
use crate::schedule::Schedule;
use crate::types::*;
use crate::view::ViewConsensus;
use crate::wishes::{Requests, Wishes};
use fide_types::{HOST_SLOT, HostId, HostSet, MAX_PROCESSES, Name, Policy, Trust};
use fide_wire::PAYLOAD_MAX;
use serde::{Deserialize, Serialize};

/// The host itself as a subject.
pub(crate) const HOST: u8 = HOST_SLOT;

/// The failure detector of one host.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Detector {
    pub(crate) config: Config,
    /// [`Config::voters`].
    pub(crate) voters: HostSet,
    pub(crate) peers: Peers,
    pub(crate) locals: Locals,
    pub(crate) remotes: Remotes,
    /// Watches of local clients.
    pub(crate) wishes: Wishes,
    /// Watches of peers.
    pub(crate) requests: Requests,
    /// Piggybacks that wait for a heartbeat.
    pub(crate) queues: Queues,
    /// Piggybacks received and not polled yet.
    pub(crate) pool: Pool,
    /// Delivered before a snapshot is taken.
    #[serde(skip)]
    pub(crate) events: Events,
    pub(crate) views: ViewConsensus,
    pub(crate) schedule: Schedule,
    pub(crate) sent: SentLog,
    pub(crate) promises: Promises,
    pub(crate) lease: Lease,
    pub(crate) life: Life,
    pub(crate) counters: Counters,
    pub(crate) last_tick_ns: u64,
    /// The end of this host's last stall.
    pub(crate) stalled_until_ns: u64,
    /// An entry of a process, a wish or `all_named` may need room in the next heartbeat.
    pub(crate) carries: bool,
}

impl Detector {
    /// Allocates everything there will ever be. The first heartbeat is due at `now_ns`.
    pub fn new(config: Config, now_ns: u64) -> Result<Detector, ConfigError> {
        config.validate()?;
        let voters = config.voters();
        let mut detector = Detector {
            voters,
            peers: Peers::new(&config),
            locals: Locals::new(config.incarnation),
            remotes: Remotes::new(config.members.len()),
            wishes: Wishes::new(),
            requests: Requests::new(),
            queues: Queues::new(),
            pool: Pool::new(),
            events: Events::default(),
            views: ViewConsensus::new(config.me, config.incarnation, voters, config.witness(), now_ns),
            schedule: Schedule::new(config.heartbeat_ns, now_ns),
            sent: SentLog::new(),
            promises: Promises::new(now_ns),
            lease: Lease::new(config.trust == Trust::Lease),
            life: Life::default(),
            counters: Counters::default(),
            last_tick_ns: now_ns,
            stalled_until_ns: 0,
            carries: false,
            config,
        };
        detector.renew_lease(now_ns);
        Ok(detector)
    }

    /// Up to `urgent_max` heartbeats, at most [`crate::URGENT_MAX`], may go out between two of the schedule:
    /// while a view is decided, and for piggybacks that a program waits for ([`Detector::hurry`]). None do
    /// until this is called. For networks with room for more than one heartbeat in each period.
    pub fn set_urgent_max(&mut self, urgent_max: u32) {
        self.schedule.set_urgent_max(urgent_max);
    }

    /// How many heartbeats may go out between two of the schedule.
    pub fn urgent_max(&self) -> u32 {
        self.schedule.urgent_max()
    }

    /// A program waits for what was piggybacked so far: it goes out before the next scheduled heartbeat, if
    /// an urgent one is left.
    pub fn hurry(&mut self) {
        self.schedule.hurry();
    }

    /// Does another host wait for what the next heartbeat says of views or carries, so that it goes out
    /// before it is due?
    pub(crate) fn is_urgent(&self) -> bool {
        let hurried = || self.schedule.allows_hurried() && !self.queues.is_empty();
        let decides = || self.is_judged_by_views(self.config.me) && self.views.has_news();
        self.schedule.allows_urgent() && !self.life.is_excluded() && (hurried() || decides())
    }

    /// The highest generation of views on this host's disk, to be given at its start; its next incarnation is
    /// above that. A detector that is never given one founds and acts as if its disk held every generation.
    pub fn keeps_generations_up_to(&mut self, kept: u32) {
        self.views.limit_stored(kept);
    }

    /// The generation that this host's disk has to hold before the host founds a view of it or acts by one.
    /// To be asked after each turn; 0 for none.
    pub fn generation_to_keep(&self) -> u32 {
        self.views.generation()
    }

    /// This host's disk holds that generation now.
    pub fn has_kept_generation(&mut self, generation: u32) {
        self.views.generation_stored(generation);
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Is the last turn longer ago than a loop that runs may take?
    pub(crate) fn has_stalled(&self, now_ns: u64) -> bool {
        let gap_ns = now_ns.saturating_sub(self.last_tick_ns);
        gap_ns > self.config.heartbeat_ns.saturating_add(self.config.stall_slack_ns)
    }

    /// This host did not run for `gap_ns`. Withholds the suspicions that are due, and gives every peer a new
    /// timeout.
    pub(crate) fn record_stall(&mut self, now_ns: u64, gap_ns: u64) {
        self.stalled_until_ns = now_ns;
        self.counters.stalls += 1;
        self.counters.stalled_ns += gap_ns;
        let mut withheld = 0;
        for peer in self.peers.others_mut() {
            let followed = peer.monitored && peer.incarnation != 0;
            if followed && peer.is_up() && peer.silent(now_ns) {
                peer.withheld += 1;
                withheld += 1;
            }
            peer.note_own_stall(now_ns);
            peer.floor_ns = now_ns;
        }
        self.counters.suspicions_withheld += u64::from(withheld);
        self.emit(Event::ObserverStalled { gap_ns, withheld });
    }

    /// Says goodbye in every further heartbeat, and acts no more.
    pub fn leave(&mut self, now_ns: u64) {
        self.life.leave();
        self.renew_lease(now_ns);
    }

    /// Has every live, listening peer acknowledged a heartbeat from `since_seq` on (or is there none)?
    pub fn left(&self, since_seq: u64) -> bool {
        self.life.is_leaving() && self.peers.listeners().all(|peer| peer.acked_seq() >= since_seq)
    }

    /// When to come back: for the next heartbeat, the next silence, or the end of the lease.
    pub fn poll_timeout(&self) -> u64 {
        if self.locals.has_notices() && !self.life.is_excluded() || self.is_urgent() {
            return self.last_tick_ns;
        }
        let mut at_ns = if self.life.is_excluded() { u64::MAX } else { self.schedule.next_ns() };
        for peer in self.peers.others() {
            if peer.is_up() && peer.monitored && !peer.suspected {
                at_ns = at_ns.min(peer.deadline_ns());
            }
            if peer.is_up() && peer.open > 0 {
                at_ns = at_ns.min(self.last_tick_ns.saturating_add(self.config.heartbeat_ns));
            }
            if let Some(old) = peer.superseded.as_ref().filter(|old| old.until_ns > self.last_tick_ns) {
                at_ns = at_ns.min(old.until_ns);
            }
        }
        if self.lease.is_fenced() { at_ns } else { at_ns.min(self.lease.until_ns()) }
    }

    /// The next event. Takes back the bytes lent for the one before.
    pub fn poll_event(&mut self) -> Option<Event> {
        if let Some(buffer) = self.events.take_lent() {
            self.pool.release(buffer);
        }
        self.events.pop()
    }

    /// The message of the [`Event::Piggyback`] polled last; empty for any other event.
    pub fn piggyback_bytes(&self, event: &Event) -> &[u8] {
        match *event {
            Event::Piggyback { buffer, len, .. } if self.events.lends(buffer) => self.pool.get(buffer, len),
            _ => &[],
        }
    }

    /// The largest packet that every plane carries is now `payload_max` bytes, limited to the range from
    /// [`Config::payload_min`] to [`PAYLOAD_MAX`]. Returns the new grant; queued messages that are longer are
    /// given up and counted as lost.
    pub fn set_payload_max(&mut self, payload_max: usize) -> usize {
        self.config.payload_max = payload_max.clamp(self.config.payload_min(), PAYLOAD_MAX);
        self.piggyback_grant()
    }

    /// Largest message, bytes.
    pub fn piggyback_grant(&self) -> usize {
        self.config.piggyback_grant()
    }

    /// Until when this node may act (own clock); `u64::MAX` under trust = network, 0 when excluded or
    /// leaving.
    pub fn lease_until_ns(&self) -> u64 {
        self.lease.until_ns()
    }

    pub fn is_fenced(&self, now_ns: u64) -> bool {
        now_ns >= self.lease.until_ns()
    }

    pub fn is_excluded(&self) -> bool {
        self.life.is_excluded()
    }

    /// Was there an [`Event::PutBack`]?
    pub fn is_put_back(&self) -> bool {
        self.life.is_put_back()
    }

    /// `None` for this host and for ids that are not members.
    pub fn peer(&self, id: HostId) -> Option<PeerView> {
        self.peers.get(id).map(Peer::look)
    }

    /// Hosts whose newest heartbeat says that they hear this host's present incarnation.
    pub fn heard_by(&self) -> HostSet {
        self.peers.set_of(Peer::knows_me)
    }

    /// The subset of [`Detector::heard_by`] that has acknowledged a heartbeat of this incarnation, and so
    /// takes it to be up and takes all that it sends.
    pub fn held_up_by(&self) -> HostSet {
        self.peers.set_of(|peer| peer.knows_me() && peer.acked_seq() > 0)
    }

    /// Has that host named all its processes to this incarnation of this one? A process that it reported
    /// before and that is not known here has then ended.
    pub fn all_named(&self, host: HostId) -> bool {
        self.peers.get(host).is_some_and(|peer| peer.is_up() && peer.all_named)
    }

    pub fn process(&self, host: HostId, slot: u8) -> Option<ProcessView> {
        if host == self.config.me {
            return self.locals.get(slot).map(Local::look);
        }
        self.remotes.get(host, slot).map(Remote::look)
    }

    /// The slot of the live process of that name; otherwise that of the latest ended one.
    pub fn find(&self, host: HostId, name: &Name) -> Option<u8> {
        let named = |slot: &u8| self.process(host, *slot).is_some_and(|process| process.name == *name);
        let is_alive = |slot: &u8| self.process(host, *slot).is_some_and(|process| !process.state.is_final());
        let ended_ns = |slot: &u8| self.process(host, *slot).map_or(0, |process| process.at_ns);
        let slots = (0..MAX_PROCESSES as u8).filter(named);
        slots.clone().find(is_alive).or_else(|| slots.max_by_key(ended_ns))
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Its id is `ViewId::NONE` under policy network.
    pub fn view(&self) -> ViewInfo {
        ViewInfo { id: self.views.id(), members: HostSet(self.views.members().hosts) }
    }

    /// The incarnation of a host in [`Detector::view`], if it is a member.
    pub fn member_incarnation(&self, host: HostId) -> Option<u32> {
        self.views.members().incarnation(host)
    }

    /// From then on no host acts by a lease of a view older than [`Detector::view`] ([`crate::view`], rule
    /// 3).
    pub fn view_settled_ns(&self) -> u64 {
        self.promises.older_views_until_ns()
    }

    /// Number of the last heartbeat sent.
    pub fn last_seq(&self) -> u64 {
        self.sent.newest()
    }

    /// When the next scheduled heartbeat is due.
    pub fn next_heartbeat_ns(&self) -> u64 {
        self.schedule.next_ns()
    }

    /// Do agreed views decide who is a member?
    pub(crate) fn uses_views(&self) -> bool {
        self.config.policy == Policy::Majority
    }

    /// Is `host` judged by agreed views rather than by each observer's own timeout?
    pub(crate) fn is_judged_by_views(&self, host: HostId) -> bool {
        self.uses_views() && self.voters.contains(host)
    }

    /// Does this host take what `peer` reports of its processes, and acknowledge it?
    pub(crate) fn listens_to(&self, peer: &Peer) -> bool {
        peer.is_up() && (!self.is_judged_by_views(peer.id) || self.views.contains(peer.id, peer.incarnation))
    }

    /// Must `peer` know of this host before it is up and can be judged? (trust = lease, judged by this host
    /// alone)
    pub(crate) fn must_know_me(&self, peer: HostId) -> bool {
        self.config.trust == Trust::Lease && !self.is_judged_by_views(peer)
    }

    /// Queues an event for the caller. At the queue's bound it is lost, and counted.
    pub(crate) fn emit(&mut self, event: Event) {
        let Err(refused) = self.events.push(event) else { return };
        self.counters.events_lost += 1;
        if let Event::Piggyback { buffer, .. } = refused {
            self.pool.release(buffer);
        }
    }

    /// Computes the lease anew, and reports when it begins or ends.
    pub(crate) fn renew_lease(&mut self, now_ns: u64) {
        if let Some(event) = self.lease.renew(now_ns, self.compute_lease()) {
            self.emit(event);
        }
    }

    fn compute_lease(&self) -> u64 {
        if self.life.is_excluded() || self.life.is_leaving() {
            return 0;
        }
        if self.config.trust == Trust::Network || self.peers.is_alone() {
            return u64::MAX;
        }
        if self.is_judged_by_views(self.config.me) { self.lease_by_views() } else { self.lease_by_peers() }
    }

    /// A majority of the view is bound until then.
    fn lease_by_views(&self) -> u64 {
        let views = &self.views;
        let is_member = views.has_view() && views.contains(self.config.me, self.config.incarnation);
        if !is_member || !views.has_stored_its_view() {
            return 0;
        }
        let members = self.peers.others().filter(|peer| views.contains(peer.id, peer.incarnation));
        lease::majority(views.members().len(), members.map(Peer::limit_ns))
    }

    /// Every live peer that judges this host is bound until then.
    fn lease_by_peers(&self) -> u64 {
        let now_ns = self.last_tick_ns;
        let counts = |peer: &&Peer| match peer.state {
            PeerState::Up => peer.is_greeted() && (peer.knows_me() || !peer.silent(now_ns)),
            PeerState::Unknown => peer.is_greeted() && !peer.silent(now_ns),
            PeerState::Dead | PeerState::Left => false,
        };
        let judges = || self.peers.others().filter(|peer| peer.monitors_me);
        match judges().filter(counts).map(Peer::limit_ns).min() {
            Some(limit_ns) => limit_ns,
            None if self.lease.was_granted() || judges().next().is_none() => u64::MAX,
            None => 0,
        }
    }
}
