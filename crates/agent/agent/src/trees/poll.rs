// SPDX-License-Identifier: Apache-2.0
//! Keeps the lane of this host's heartbeats, and follows the controller's events.

use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    sync::{
        Arc,
        mpsc::{SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use fide_controller_api::{
    Code, Method,
    client::Answered,
    event::{BandwidthTerminated, Batch, Event, Numbered, RedundancyLost, WithoutRedundancy},
    lane::{self as api, Lane, LaneRequest, Lanes, Latency, Moved, Receiver, Resources, Standing},
    paths,
    tls::ClientTls,
};
use fide_types::HostId;
use fide_wire::{MAX_PLANES, PAYLOAD_MAX};
use serde::{Serialize, de::DeserializeOwned};

use crate::{command::Command, timeout::Network};

use super::{Announced, Input, Kept, LANE, NOTICES_ROOM, Order, Source, Talk, Tree, call, is_tree_group, lock, order};

/// How long one request for events may wait.
const POLL: Duration = Duration::from_secs(15);
/// Pause after a failure.
const PAUSE: Duration = Duration::from_millis(200);
/// How long a request may take before it is begun anew.
const LIMIT: Duration = Duration::from_secs(10);
/// How long the control thread may take to carry out an order.
const ORDER_LIMIT: Duration = Duration::from_secs(5);
/// The lane's period is shorter than the heartbeat's by one part in this many, for a loop that sends late,
/// then early.
const EARLY: u64 = 4;
/// How often the room for messages is halved before it is given up.
const SIZES: u32 = 4;
/// Between two requests for the size that was not granted.
const MORE: Duration = Duration::from_secs(10);
/// A longer wait, asked for by the controller, is not believed.
const BEGIN_MAX: Duration = Duration::from_secs(1);

pub(super) struct Poll {
    talk: Talk,
    orders: SyncSender<Order>,
    wake: Arc<OwnedFd>,
    lanes: SyncSender<Input>,
    kept: Kept,
    tls: Arc<ClientTls>,
    /// Number of the last event that was handled.
    after: u64,
    /// The lane of this host's heartbeats.
    own: Option<u64>,
    /// Bytes of a heartbeat that its lane was granted.
    granted: Option<usize>,
    asked_for_more: Option<Instant>,
    /// The planned latency of other hosts' heartbeats, by sender.
    networks: HashMap<u16, Network>,
}

impl Poll {
    pub(super) fn new(
        talk: Talk,
        orders: SyncSender<Order>,
        wake: Arc<OwnedFd>,
        lanes: SyncSender<Input>,
        kept: Kept,
        tls: Arc<ClientTls>,
    ) -> Self {
        Self {
            talk,
            orders,
            wake,
            lanes,
            kept,
            tls,
            after: 0,
            own: None,
            granted: None,
            asked_for_more: None,
            networks: HashMap::new(),
        }
    }

    pub(super) fn run(mut self) {
        // The kernel refuses before Linux 6.12: the thread then waits for its turn.
        let _ = fide_client::wake_eagerly();
        // The stored trees are used at once.
        for plane in 0..MAX_PLANES {
            if let Some(tree) = self.kept.of(plane)
                && !self.aim(u8::try_from(plane).expect("two"), tree)
            {
                return;
            }
        }
        let mut quiet = false;
        loop {
            match self.follow() {
                Ok(()) => quiet = false,
                Err(Ended::Gone) => return,
                Err(Ended::Trouble(why)) => {
                    if !quiet {
                        tracing::warn!("no word from the controller, the trees stay as they are: {why}");
                    }
                    quiet = true;
                    thread::sleep(PAUSE);
                }
            }
            self.look();
        }
    }

    /// Has the next request use certificates that were renewed or revoked.
    fn look(&self) {
        if self.tls.look() {
            tracing::info!("certificates were read again");
        }
    }

    /// Learns everything, then follows the events until something is wrong.
    fn follow(&mut self) -> Result<(), Ended> {
        let Lanes { lanes } = self.get(paths::LANES, Duration::ZERO)?;
        let mut own = false;
        for lane in &lanes {
            if self.lane(lane)? {
                own = true;
            }
        }
        if !own {
            self.ask_for_lane()?;
        }
        // From here on no event is missed.
        self.lanes.send(Input::Anew).map_err(|_| Ended::Gone)?;
        loop {
            let wait_ms = u64::try_from(POLL.as_millis()).expect("short");
            let Batch { lost, events } = self.get(&paths::upcalls(self.after, wait_ms), POLL)?;
            self.look();
            let quiet = events.is_empty();
            for Numbered { number, event } in events {
                self.news(&event)?;
                self.lanes.send(Input::News(Box::new(event))).map_err(|_| Ended::Gone)?;
                self.after = number;
            }
            // Events that were dropped are made up for by learning everything anew.
            if let Some(lost) = lost {
                self.after = self.after.max(lost.last);
                return Ok(());
            }
            self.ask_for_more()?;
            if quiet && self.is_stale()? {
                return Ok(());
            }
        }
    }

    /// A controller that sends no events may have been replaced by another without noticing; its answer is
    /// marked as stale then. The next controller is asked instead. If none of them can prove that it leads,
    /// the first one gets its turn again.
    fn is_stale(&mut self) -> Result<bool, Ended> {
        let Some(own) = self.own else { return Ok(false) };
        let answered = self
            .talk
            .caller
            .call(Method::Get, &paths::lane(own), None, None, Duration::ZERO)
            .map_err(Ended::trouble)?;
        if answered.stale {
            self.talk.caller.ask_another();
        }
        Ok(answered.stale)
    }

    fn get<T: DeserializeOwned>(&mut self, path: &str, wait: Duration) -> Result<T, Ended> {
        let answered = self.talk.caller.call(Method::Get, path, None, None, wait).map_err(Ended::trouble)?;
        if answered.is_ok() {
            return read(&answered);
        }
        // Another controller's store, or ours was lost: events are numbered anew.
        if let Some(last) = answered.failure().and_then(|failure| failure.details.last) {
            self.after = last;
        }
        Err(Ended::Trouble(answered.message().to_owned()))
    }

    /// Asks for a lane that carries heartbeats with the longest messages. If the network cannot hold that,
    /// asks for shorter messages first.
    fn ask_for_lane(&mut self) -> Result<(), Ended> {
        let mut refused = None;
        for bytes in self.sizes() {
            let answered = self.change(Method::Post, paths::LANES, &self.heartbeat(bytes))?;
            if answered.is_ok() {
                return self.lane(&read(&answered)?).map(drop);
            }
            if !matches!(answered.code(), Some(Code::NoCapacity | Code::NoTrees | Code::HarmsOthers)) {
                return Err(Ended::Trouble(answered.message().to_owned()));
            }
            refused.get_or_insert(answered.message().to_owned());
        }
        Err(Ended::Trouble(refused.unwrap_or_default()))
    }

    /// Asks for the size that was not granted before.
    fn ask_for_more(&mut self) -> Result<(), Ended> {
        let (Some(lane), Some(granted)) = (self.own, self.granted) else { return Ok(()) };
        if self.asked_for_more.is_some_and(|at| at.elapsed() < MORE) {
            return Ok(());
        }
        self.asked_for_more = Some(Instant::now());
        for bytes in self.sizes().into_iter().take_while(|bytes| *bytes > granted) {
            let answered = self.change(Method::Put, &paths::lane(lane), &self.heartbeat(bytes))?;
            if answered.is_ok() {
                let lane: Lane = read(&answered)?;
                // Until then the contracts of other lanes hold as they were.
                thread::sleep(Duration::from_nanos(lane.begins_in_ns).min(BEGIN_MAX));
                return self.lane(&lane).map(drop);
            }
        }
        Ok(())
    }

    /// The heartbeat sizes to ask for, the largest first.
    fn sizes(&self) -> Vec<usize> {
        let (most, least) = (self.talk.config.payload_max(PAYLOAD_MAX), self.talk.payload_min);
        let mut sizes: Vec<usize> = (0..SIZES).map(|half| least + (most.saturating_sub(least) >> half)).collect();
        sizes.push(least);
        sizes.dedup();
        sizes
    }

    fn heartbeat(&self, bytes: usize) -> LaneRequest {
        let me = self.talk.me;
        let members = (1..).zip(&self.talk.config.members);
        let heartbeat_ns = self.talk.config.heartbeat_ns;
        LaneRequest {
            name: LANE.to_owned(),
            receivers: members.filter(|(id, _)| *id != me).map(|(_, member)| member.name.as_str().to_owned()).collect(),
            size_max_bytes: (bytes + NOTICES_ROOM) as u64,
            // A late heartbeat is followed by one on time.
            period_min_ns: heartbeat_ns - heartbeat_ns / EARLY,
            redundancy: Some(u8::try_from(self.talk.interfaces.len()).expect("two planes")),
            ..LaneRequest::default()
        }
    }

    fn change(&mut self, method: Method, path: &str, body: &impl Serialize) -> Result<Answered, Ended> {
        lock(&self.talk.ordered).change(&mut self.talk.caller, method, path, body, LIMIT).map_err(Ended::trouble)
    }

    /// Takes the heartbeat size that the lane was granted.
    fn granted(&mut self, resources: &Resources) -> Result<(), Ended> {
        let size = resources.bounds().and_then(|bounds| usize::try_from(bounds.size_max_bytes).ok());
        let Some(bytes) = size.map(|size| size.saturating_sub(NOTICES_ROOM)) else { return Ok(()) };
        if self.granted.replace(bytes) != Some(bytes) && !order(&self.orders, &self.wake, Order::Payload { bytes }) {
            return Err(Ended::Gone);
        }
        Ok(())
    }

    /// Takes how late another host's heartbeats may be here; the timeout follows.
    fn contract(&mut self, sender: HostId, receivers: &[Receiver]) -> Result<(), Ended> {
        let me = self.talk.config.member(self.talk.me).name.as_str();
        let mine = receivers.iter().find(|receiver| receiver.host == me);
        let Some(Latency { latency_min_ns, jitter_max_ns }) = mine.and_then(|mine| mine.latency) else { return Ok(()) };
        let network = Network { latency_min_ns, jitter_max_ns };
        if self.networks.insert(sender, network) == Some(network) {
            return Ok(());
        }
        let command = Command::SetNetwork { host: sender, network };
        call(&self.orders, &self.wake, command).map(drop).ok_or(Ended::Gone)
    }

    fn sender(&self, name: &str) -> Option<u16> {
        let position = self.talk.config.members.iter().position(|member| member.name.as_str() == name)?;
        u16::try_from(position + 1).ok()
    }

    /// Takes a lane as the controller describes it. Whether it is the lane of this host's heartbeats.
    fn lane(&mut self, lane: &Lane) -> Result<bool, Ended> {
        if lane.name != LANE {
            self.others_lane(lane);
            return Ok(false);
        }
        if lane.standing != Standing::Held {
            return Ok(false);
        }
        for tree in lane.trees.iter().filter(|tree| tree.is_installed()) {
            self.tree(lane.lane, &lane.sender, tree)?;
        }
        let sender = self.sender(&lane.sender);
        let own = sender == Some(self.talk.me);
        if own {
            self.own = Some(lane.lane);
            self.granted(&lane.resources)?;
        } else if let Some(sender) = sender {
            self.contract(sender, &lane.receivers)?;
        }
        Ok(own)
    }

    fn news(&mut self, event: &Event) -> Result<(), Ended> {
        match event {
            Event::Tree(ready) if ready.name == LANE => {
                self.tree(ready.lane, &ready.sender, &ready.tree)?;
                // The lane may have been opened after this host learnt the lanes.
                let sender = self.sender(&ready.sender).filter(|sender| *sender != self.talk.me);
                if let Some(sender) = sender.filter(|sender| !self.networks.contains_key(sender)) {
                    let lane: Lane = self.get(&paths::lane(ready.lane), Duration::ZERO)?;
                    self.contract(sender, &lane.receivers)?;
                }
            }
            Event::Tree(ready) => self.others_tree(ready.lane, &ready.sender, ready.label, &ready.tree),
            Event::BandwidthChanged(changed) if self.own == Some(changed.lane) => self.granted(&changed.resources)?,
            Event::BandwidthChanged(changed) => {
                let of = |(_, announced): &(&Source, &Announced)| announced.lane == changed.lane;
                let source = lock(&self.talk.known).lanes.iter().find(of).map(|(source, _)| *source);
                if let Some((sender, None)) = source {
                    self.contract(sender, &changed.receivers)?;
                }
            }
            Event::LaneEnded { lane, .. } => self.others_lane_ended(*lane),
            Event::RedundancyLost(lost) if lost.name == LANE => {
                let RedundancyLost { tree, sender, why, no_other, policy, .. } = lost;
                let why = format!("tree {tree} of {sender} is lost ({why}), and there is no other ({no_other})");
                tracing::warn!("{why}; policy {}", policy.as_str());
                if *policy == WithoutRedundancy::Stop && !order(&self.orders, &self.wake, Order::Stop { why }) {
                    return Err(Ended::Gone);
                }
            }
            Event::BandwidthTerminated(BandwidthTerminated { lane, why, .. }) if self.own == Some(*lane) => {
                tracing::warn!("lane {lane} is terminated: {why}");
                // Learns all lanes, and asks anew if this host's was the one.
                return Err(Ended::Trouble("a lane was terminated".to_owned()));
            }
            Event::BandwidthTerminated(ended) => self.others_lane_ended(ended.lane),
            Event::Other(body) => {
                tracing::warn!("the controller sent an event that this agent does not understand: {body}")
            }
            // Events of the controller's own cluster, which agents do not join.
            Event::RedundancyLost(_)
            | Event::MonitorRequest { .. }
            | Event::PbsizeChanged { .. }
            | Event::TimeoutChanged { .. } => {}
        }
        Ok(())
    }

    fn know(&self, source: Source, lane: u64, tree: usize, generation: u32) {
        let mut known = lock(&self.talk.known);
        let announced = known.lanes.entry(source).or_insert(Announced { lane, generations: [None; MAX_PLANES] });
        if announced.lane != lane {
            *announced = Announced { lane, generations: [None; MAX_PLANES] };
        }
        announced.generations[tree] = Some(generation);
    }

    /// Takes the trees of a program's lane that is received here, so that a missed one can be reported.
    fn others_lane(&self, lane: &Lane) {
        if lane.standing == Standing::Ended {
            return;
        }
        for tree in lane.trees.iter().filter(|tree| tree.is_installed()) {
            self.others_tree(lane.lane, &lane.sender, lane.label, tree);
        }
    }

    fn others_tree(&self, lane: u64, sender: &str, label: Option<u8>, tree: &api::Tree) {
        let sender = self.sender(sender).filter(|sender| *sender != self.talk.me);
        let (Some(sender), Some(label)) = (sender, label) else { return };
        let index = usize::from(tree.tree);
        if index < MAX_PLANES {
            self.know((sender, Some(label)), lane, index, tree.generation);
        }
    }

    fn others_lane_ended(&self, lane: u64) {
        lock(&self.talk.known).lanes.retain(|(_, label), announced| label.is_none() || announced.lane != lane);
    }

    /// Takes a heartbeat tree that is installed in all switches. This host's own is sent to from now on.
    fn tree(&mut self, lane: u64, sender: &str, installed: &api::Tree) -> Result<(), Ended> {
        let api::Tree { tree: plane, generation, group, .. } = *installed;
        let index = usize::from(plane);
        if index >= MAX_PLANES || !is_tree_group(group) {
            return Err(Ended::Trouble(format!("the controller announced an invalid tree: {installed:?}")));
        }
        let Some(sender) = self.sender(sender) else { return Ok(()) };
        if sender != self.talk.me {
            self.know((sender, None), lane, index, generation);
            return Ok(());
        }
        let port = installed.port.as_deref().unwrap_or("");
        if self.talk.interfaces.get(index).is_none_or(|interface| interface != port) {
            let here = self.talk.interfaces.join(", ");
            let why = format!(
                "tree {index} leaves by port {port}, plane {index} is not there (planes: {here}); name the host's ports in the \
                 topology as its interfaces, in the order of the planes"
            );
            return Err(Ended::Trouble(why));
        }
        let tree = Tree { lane, generation, group };
        if self.kept.of(index) != Some(tree) {
            if !self.aim(plane, tree) {
                return Err(Ended::Gone);
            }
            self.kept.set(plane, tree);
        }
        let answered = self.change(Method::Post, &paths::moved(lane), &Moved { tree: plane, generation })?;
        if answered.is_ok() { Ok(()) } else { Err(Ended::Trouble(answered.message().to_owned())) }
    }

    /// Has the loop send a plane to a tree, and waits for that; false if the control thread does not do it.
    fn aim(&self, plane: u8, tree: Tree) -> bool {
        let (done, carried_out) = sync_channel(1);
        order(&self.orders, &self.wake, Order::Aim { plane, tree, done })
            && carried_out.recv_timeout(ORDER_LIMIT).is_ok()
    }
}

/// Parses an answer.
fn read<T: DeserializeOwned>(answered: &Answered) -> Result<T, Ended> {
    answered.read().map_err(|why| Ended::Trouble(format!("the controller's answer makes no sense: {why}")))
}

/// Why following the controller has ended.
enum Ended {
    /// The agent ends.
    Gone,
    Trouble(String),
}

impl Ended {
    fn trouble(error: impl ToString) -> Self {
        Self::Trouble(error.to_string())
    }
}
