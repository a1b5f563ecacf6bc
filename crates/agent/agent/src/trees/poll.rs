// SPDX-License-Identifier: Apache-2.0
//! Keeping the lane of this host's heartbeats, and following what the controller tells.

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

use fide_controller_api::{Method, client::Answered, tls::ClientTls};
use fide_wire::{MAX_PLANES, PAYLOAD_MAX};
use serde_json::{Value, json};

use crate::{command::Command, timeout::Network};

use super::{Input, Kept, LANE, NOTICES_ROOM, Order, Source, Talk, Told, Tree, call, group, lock, order};

/// How long one question for news waits.
const POLL: Duration = Duration::from_secs(15);
/// After a failure.
const PAUSE: Duration = Duration::from_millis(200);
/// How long a request may take until it is begun anew.
const LIMIT: Duration = Duration::from_secs(10);
/// How long the control thread may take to carry out an order.
const ORDER_LIMIT: Duration = Duration::from_secs(5);
/// Shares of the heartbeat's interval that the lane's period leaves for a loop that sends late, then early.
const EARLY: u64 = 4;
/// Times that the room for messages is halved until there is none.
const SIZES: u32 = 4;
/// How often it is asked for the room that was not there.
const MORE: Duration = Duration::from_secs(10);
/// A controller that has others wait longer is not believed.
const BEGIN_MAX: Duration = Duration::from_secs(1);

pub(super) struct Poll {
    talk: Talk,
    orders: SyncSender<Order>,
    wake: Arc<OwnedFd>,
    lanes: SyncSender<Input>,
    kept: Kept,
    tls: Arc<ClientTls>,
    /// The last news that was handled.
    after: u64,
    /// Lane of this host's heartbeats.
    own: Option<u64>,
    /// Bytes of a heartbeat that it was granted.
    granted: Option<usize>,
    asked_for_more: Option<Instant>,
    /// What other hosts' heartbeats were planned to take, by sender.
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
        // Refused before Linux 6.12: it takes its turn then.
        let _ = fide_client::wake_eagerly();
        // What was kept is sent to at once.
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

    /// Certificates that were renewed or revoked count for the next request.
    fn look(&self) {
        if self.tls.look() {
            tracing::info!("certificates were read again");
        }
    }

    /// Learns everything, then follows the news until something is wrong.
    fn follow(&mut self) -> Result<(), Ended> {
        let lanes = self.get("/v1/lanes", Duration::ZERO)?;
        let mut own = false;
        for lane in lanes["lanes"].as_array().into_iter().flatten() {
            own |= self.lane(lane)?;
        }
        if !own {
            self.ask_for_lane()?;
        }
        // From here on its news are all heard.
        self.lanes.send(Input::Anew).map_err(|_| Ended::Gone)?;
        loop {
            let path = format!("/v1/upcalls?after={}&wait_ms={}", self.after, POLL.as_millis());
            let news = self.get(&path, POLL)?;
            self.look();
            for event in news["events"].as_array().into_iter().flatten() {
                let (Some(number), body) = (event["number"].as_u64(), &event["event"]) else {
                    return Err(Ended::Trouble(format!("news without a number: {event}")));
                };
                self.news(body)?;
                self.lanes.send(Input::News(body.clone())).map_err(|_| Ended::Gone)?;
                self.after = number;
            }
            // What was dropped is learnt by asking for everything.
            if let Some(last) = news["lost"]["last"].as_u64() {
                self.after = self.after.max(last);
                return Ok(());
            }
            self.ask_for_more()?;
            if news["events"].as_array().is_none_or(Vec::is_empty) && self.is_told_old_things()? {
                return Ok(());
            }
        }
    }

    /// A controller that tells nothing may be one that others have followed without its knowing: what it answers then is marked. The next one is
    /// asked; where none can prove that it leads, the first is come back to.
    fn is_told_old_things(&mut self) -> Result<bool, Ended> {
        let Some(own) = self.own else { return Ok(false) };
        let path = format!("/v1/lanes/{own}");
        let answered = self.talk.caller.call(Method::Get, &path, None, None, Duration::ZERO).map_err(Ended::trouble)?;
        if answered.stale {
            self.talk.caller.ask_another();
        }
        Ok(answered.stale)
    }

    fn get(&mut self, path: &str, wait: Duration) -> Result<Value, Ended> {
        let answered = self.talk.caller.call(Method::Get, path, None, None, wait).map_err(Ended::trouble)?;
        if answered.status == 200 {
            return Ok(answered.body);
        }
        // Another controller's store, or ours forgotten: news are numbered anew.
        if let Some(last) = answered.body["error"]["last"].as_u64() {
            self.after = last;
        }
        Err(Ended::Trouble(answered.message().to_owned()))
    }

    /// Asks for a lane that carries heartbeats with the longest messages, or with shorter ones if the network cannot hold
    /// that: first the messages that ride along become smaller.
    fn ask_for_lane(&mut self) -> Result<(), Ended> {
        let mut refused = None;
        for bytes in self.sizes() {
            let body = self.heartbeat(bytes);
            let answered = self.change(Method::Post, "/v1/lanes", &body)?;
            if answered.status == 200 {
                return self.lane(&answered.body).map(drop);
            }
            if !matches!(answered.code(), "no_capacity" | "no_trees" | "harms_others") {
                return Err(Ended::Trouble(answered.message().to_owned()));
            }
            refused.get_or_insert(answered.message().to_owned());
        }
        Err(Ended::Trouble(refused.unwrap_or_default()))
    }

    /// Asks for the room that was not there before.
    fn ask_for_more(&mut self) -> Result<(), Ended> {
        let (Some(lane), Some(granted)) = (self.own, self.granted) else { return Ok(()) };
        if self.asked_for_more.is_some_and(|at| at.elapsed() < MORE) {
            return Ok(());
        }
        self.asked_for_more = Some(Instant::now());
        for bytes in self.sizes().into_iter().take_while(|bytes| *bytes > granted) {
            let answered = self.change(Method::Put, &format!("/v1/lanes/{lane}"), &self.heartbeat(bytes))?;
            if answered.status == 200 {
                // Others' contracts hold as they were until then.
                let begins_in_ns = answered.body["begins_in_ns"].as_u64().unwrap_or(0);
                thread::sleep(Duration::from_nanos(begins_in_ns).min(BEGIN_MAX));
                return self.lane(&answered.body).map(drop);
            }
        }
        Ok(())
    }

    /// What heartbeats are asked for, the most first.
    fn sizes(&self) -> Vec<usize> {
        let (most, least) = (self.talk.config.payload_max(PAYLOAD_MAX), self.talk.payload_min);
        let mut sizes: Vec<usize> = (0..SIZES).map(|half| least + (most.saturating_sub(least) >> half)).collect();
        sizes.push(least);
        sizes.dedup();
        sizes
    }

    fn heartbeat(&self, bytes: usize) -> Value {
        let me = self.talk.me;
        let members = (1..).zip(&self.talk.config.members);
        let receivers: Vec<&str> =
            members.filter(|(id, _)| *id != me).map(|(_, member)| member.name.as_str()).collect();
        let heartbeat_ns = self.talk.config.heartbeat_ns;
        json!({
            "name": LANE, "receivers": receivers, "size_max_bytes": bytes + NOTICES_ROOM,
            // A heartbeat that was late is followed by one on time.
            "period_min_ns": heartbeat_ns - heartbeat_ns / EARLY,
            "redundancy": self.talk.interfaces.len(),
        })
    }

    fn change(&mut self, method: Method, path: &str, body: &Value) -> Result<Answered, Ended> {
        lock(&self.talk.ordered).change(&mut self.talk.caller, method, path, body, LIMIT).map_err(Ended::trouble)
    }

    /// Heartbeats are as long as their lane was granted.
    fn granted(&mut self, resources: &Value) -> Result<(), Ended> {
        let size = resources["size_max_bytes"].as_u64().and_then(|size| usize::try_from(size).ok());
        let Some(bytes) = size.map(|size| size.saturating_sub(NOTICES_ROOM)) else { return Ok(()) };
        if self.granted.replace(bytes) != Some(bytes) && !order(&self.orders, &self.wake, Order::Payload { bytes }) {
            return Err(Ended::Gone);
        }
        Ok(())
    }

    /// How late another host's heartbeats may be here: the timeout follows.
    fn contract(&mut self, sender: u16, receivers: &Value) -> Result<(), Ended> {
        let me = self.talk.config.member(self.talk.me).name.as_str();
        let mine = receivers.as_array().into_iter().flatten().find(|receiver| receiver["host"] == me);
        let Some(latency) = mine.map(|mine| &mine["latency"]) else { return Ok(()) };
        let (Some(latency_min_ns), Some(jitter_max_ns)) =
            (latency["latency_min_ns"].as_u64(), latency["jitter_max_ns"].as_u64())
        else {
            return Ok(());
        };
        let network = Network { latency_min_ns, jitter_max_ns };
        if self.networks.insert(sender, network) == Some(network) {
            return Ok(());
        }
        let command = Command::SetNetwork { host: sender, network };
        call(&self.orders, &self.wake, command).map(drop).ok_or(Ended::Gone)
    }

    fn post(&mut self, path: &str, body: &Value) -> Result<Value, Ended> {
        let answered = self.change(Method::Post, path, body)?;
        if answered.status == 200 { Ok(answered.body) } else { Err(Ended::Trouble(answered.message().to_owned())) }
    }

    fn sender(&self, lane: &Value) -> Option<u16> {
        let name = lane["sender"].as_str()?;
        let position = self.talk.config.members.iter().position(|member| member.name.as_str() == name)?;
        u16::try_from(position + 1).ok()
    }

    /// A lane as the controller describes it; whether it is that of this host's heartbeats.
    fn lane(&mut self, lane: &Value) -> Result<bool, Ended> {
        if lane["name"] != LANE {
            self.others_lane(lane);
            return Ok(false);
        }
        if lane["standing"] != "held" {
            return Ok(false);
        }
        for tree in lane["trees"].as_array().into_iter().flatten() {
            if tree["phase"] == "ready" || tree["phase"] == "used" {
                let mut tree = tree.clone();
                tree["lane"] = lane["lane"].clone();
                tree["sender"] = lane["sender"].clone();
                self.tree(&tree)?;
            }
        }
        let sender = self.sender(lane);
        let own = sender == Some(self.talk.me);
        if own {
            self.own = lane["lane"].as_u64();
            self.granted(&lane["resources"])?;
        } else if let Some(sender) = sender {
            self.contract(sender, &lane["receivers"])?;
        }
        Ok(own)
    }

    fn news(&mut self, body: &Value) -> Result<(), Ended> {
        match body["kind"].as_str().unwrap_or("") {
            "tree" if body["name"] == LANE => {
                self.tree(body)?;
                // Its lane is younger than what was learnt at the beginning.
                let sender = self.sender(body).filter(|sender| *sender != self.talk.me);
                if let (Some(sender), Some(lane)) = (sender, body["lane"].as_u64())
                    && !self.networks.contains_key(&sender)
                {
                    let lane = self.get(&format!("/v1/lanes/{lane}"), Duration::ZERO)?;
                    self.contract(sender, &lane["receivers"])?;
                }
            }
            "bandwidth_changed" if self.own.is_some() && self.own == body["lane"].as_u64() => {
                self.granted(&body["resources"])?;
            }
            "bandwidth_changed" => {
                let of = |(_, told): &(&Source, &Told)| Some(told.lane) == body["lane"].as_u64();
                let source = lock(&self.talk.known).lanes.iter().find(of).map(|(source, _)| *source);
                if let Some((sender, None)) = source {
                    self.contract(sender, &body["receivers"])?;
                }
            }
            "tree" => self.others_tree(body),
            "lane_ended" => self.others_lane_ended(body),
            "redundancy_lost" if body["name"] == LANE => {
                let why = format!(
                    "tree {} of {} is lost ({}), and there is no other ({})",
                    body["tree"], body["sender"], body["why"], body["no_other"]
                );
                tracing::warn!("{why}; policy {}", body["policy"]);
                if body["policy"] == "stop" && !order(&self.orders, &self.wake, Order::Stop { why }) {
                    return Err(Ended::Gone);
                }
            }
            "bandwidth_terminated" if self.own != body["lane"].as_u64() => self.others_lane_ended(body),
            "bandwidth_terminated" if self.own == body["lane"].as_u64() => {
                tracing::warn!("lane {} is terminated: {}", body["lane"], body["why"]);
                // Learn what there is, and ask anew if it was ours.
                return Err(Ended::Trouble("a lane was terminated".to_owned()));
            }
            _ => {}
        }
        Ok(())
    }

    fn know(&self, source: Source, lane: u64, tree: usize, generation: u32) {
        let mut known = lock(&self.talk.known);
        let told = known.lanes.entry(source).or_insert(Told { lane, generations: [None; MAX_PLANES] });
        if told.lane != lane {
            *told = Told { lane, generations: [None; MAX_PLANES] };
        }
        told.generations[tree] = Some(generation);
    }

    /// A program's lane: if it is received here, its trees are known, so that one that is missed can be reported.
    fn others_lane(&self, lane: &Value) {
        for tree in lane["trees"].as_array().into_iter().flatten() {
            if lane["standing"] != "ended" && (tree["phase"] == "ready" || tree["phase"] == "used") {
                let mut tree = tree.clone();
                for key in ["lane", "sender", "label"] {
                    tree[key] = lane[key].clone();
                }
                self.others_tree(&tree);
            }
        }
    }

    fn others_tree(&self, told: &Value) {
        let small = |key: &str| told[key].as_u64().and_then(|number| u8::try_from(number).ok());
        let generation = told["generation"].as_u64().and_then(|generation| u32::try_from(generation).ok());
        let sender = self.sender(told).filter(|sender| *sender != self.talk.me);
        let (Some(sender), Some(label), Some(tree), Some(lane), Some(generation)) =
            (sender, small("label"), small("tree"), told["lane"].as_u64(), generation)
        else {
            return;
        };
        if usize::from(tree) < MAX_PLANES {
            self.know((sender, Some(label)), lane, usize::from(tree), generation);
        }
    }

    fn others_lane_ended(&self, body: &Value) {
        let number = body["lane"].as_u64();
        lock(&self.talk.known).lanes.retain(|(_, label), told| label.is_none() || Some(told.lane) != number);
    }

    /// A tree that is in all switches.
    fn tree(&mut self, told: &Value) -> Result<(), Ended> {
        let nonsense = || Ended::Trouble(format!("the controller told a tree that is none: {told}"));
        let number = |key: &str| told[key].as_u64();
        let index = number("tree").filter(|tree| *tree < MAX_PLANES as u64).ok_or_else(nonsense)?;
        let generation = number("generation").and_then(|g| u32::try_from(g).ok()).ok_or_else(nonsense)?;
        let (Some(lane), Some(group)) = (number("lane"), group(&told["group"])) else { return Err(nonsense()) };
        let Some(sender) = self.sender(told) else { return Ok(()) };
        let index = usize::try_from(index).expect("0 or 1");
        if sender != self.talk.me {
            self.know((sender, None), lane, index, generation);
            return Ok(());
        }
        let port = told["port"].as_str().unwrap_or("");
        let plane = u8::try_from(index).expect("0 or 1");
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
        let body = json!({"tree": index, "generation": generation});
        self.post(&format!("/v1/lanes/{lane}/moved"), &body).map(drop)
    }

    /// Has the loop send a plane to a tree, and waits until it does; false if there is nobody to do it.
    fn aim(&self, plane: u8, tree: Tree) -> bool {
        let (done, carried_out) = sync_channel(1);
        order(&self.orders, &self.wake, Order::Aim { plane, tree, done })
            && carried_out.recv_timeout(ORDER_LIMIT).is_ok()
    }
}

/// Why following has ended.
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
