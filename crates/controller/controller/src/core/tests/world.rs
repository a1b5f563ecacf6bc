// SPDX-License-Identifier: Apache-2.0
//! A core with switches and hosts around it, all by hand.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use fide_controller_api::Method;
use fide_controller_api::identity::Identity;
use fide_controller_api::paths::{self, template};
use fide_planner::topology::{CableSpec, LeafSpine};
use fide_planner::{Limits, Topology};
use serde_json::{Value, json};

use super::super::{Core, Event, Options, SwitchOrder, state};
use crate::clock::Now;
use crate::handler::{Decision, Handler, Peer, Request};

pub(super) struct World {
    pub(super) core: Core,
    pub(super) now_ns: u64,
    /// What each switch has.
    pub(super) switches: BTreeMap<String, BTreeMap<Ipv4Addr, BTreeSet<String>>>,
    /// Orders not carried out yet, as a switch may take its time.
    pub(super) held_back: Vec<SwitchOrder>,
    pub(super) slow: bool,
    pub(super) refusing: BTreeSet<String>,
    pub(super) upcalls: Vec<(String, Value)>,
    pub(super) records: Vec<Vec<u8>>,
}

/// Two pairs of leaves, three spines, three hosts at each pair.
pub(super) fn topology() -> Topology {
    LeafSpine { groups: 2, homing: 2, spines: 3, hosts: 3 }.build(&CableSpec::default()).unwrap()
}

impl World {
    pub(super) fn new(options: Options) -> World {
        let mut core = Core::new(topology(), Limits::default(), options).unwrap();
        core.restore(None, &[]).unwrap();
        let mut world = World {
            core,
            now_ns: 1_000,
            switches: BTreeMap::new(),
            held_back: Vec::new(),
            slow: false,
            refusing: BTreeSet::new(),
            upcalls: Vec::new(),
            records: Vec::new(),
        };
        let decision = world.core.resume(world.now());
        world.take(decision);
        world
    }

    pub(super) fn now(&self) -> Now {
        Now { boot_ns: self.now_ns, unix_ns: self.now_ns }
    }

    fn take(&mut self, decision: Decision<SwitchOrder>) {
        assert!(!decision.take_back, "a refusal had begun to change something");
        self.records.extend(decision.record);
        self.upcalls.extend(decision.upcalls.into_iter().map(|(host, body)| (host.to_string(), body)));
        for effect in decision.effects {
            if self.slow {
                self.held_back.push(effect);
            } else {
                self.carry_out(effect);
            }
        }
    }

    fn carry_out(&mut self, order: SwitchOrder) {
        let has = self.switches.entry(order.switch.clone()).or_default();
        let refused = self.refusing.contains(&order.switch) && !order.install.is_empty();
        if !refused {
            if order.anew {
                has.clear();
            }
            order.remove.iter().for_each(|group| {
                has.remove(group);
            });
            has.extend(order.install);
        }
        let error = refused.then(|| "table full".to_owned());
        self.event(Event::Applied { switch: order.switch, number: order.number, error });
    }

    pub(super) fn carry_out_held_back(&mut self) {
        self.slow = false;
        for effect in std::mem::take(&mut self.held_back) {
            self.carry_out(effect);
        }
    }

    pub(super) fn event(&mut self, event: Event) {
        let decision = self.core.event(event, self.now());
        self.take(decision);
    }

    /// Lets time pass; whatever is due happens on time.
    pub(super) fn pass(&mut self, ns: u64) {
        let end = self.now_ns + ns;
        while let Some(at) = self.core.deadline_ns().filter(|at| *at <= end) {
            self.now_ns = self.now_ns.max(at);
            let decision = self.core.tick(self.now());
            self.take(decision);
        }
        self.now_ns = end;
    }

    pub(super) fn ask(
        &mut self,
        host: &str,
        method: Method,
        path: &'static str,
        of: &str,
        body: Value,
    ) -> (u16, Value) {
        let peer = Peer { identity: if host == "op" { "operator.op".parse() } else { Identity::host(host) }.unwrap() };
        let name = path.split(['{', '}']).nth(1).unwrap_or("").to_owned();
        let request =
            Request { method, path, parameters: vec![(name, of.to_owned())], query: Vec::new(), body, sequence: None };
        let answer = if method == Method::Get {
            self.core.read(&peer, &request, self.now())
        } else {
            let decision = self.core.change(&peer, &request, self.now());
            let answer = decision.answer.clone().unwrap();
            self.take(decision);
            answer
        };
        (answer.status, answer.body)
    }

    /// Opens a lane from a host to others. Returns its number.
    pub(super) fn lane(&mut self, host: &str, receivers: &[&str], period_ns: u64) -> u64 {
        let body = json!({"name": "l", "receivers": receivers, "size_max_bytes": 200, "period_min_ns": period_ns});
        let (status, answer) = self.ask(host, Method::Post, paths::LANES, "", body);
        assert_eq!(status, 200, "{answer}");
        answer["lane"].as_u64().unwrap()
    }

    pub(super) fn see(&mut self, id: u64) -> Value {
        let (status, answer) = self.ask("op", Method::Get, template::LANE, &id.to_string(), Value::Null);
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// Takes the upcalls of a kind to a host since the last call.
    pub(super) fn upcalls_of(&mut self, host: &str, kind: &str) -> Vec<Value> {
        let host = format!("host.{host}");
        let mut taken = Vec::new();
        self.upcalls.retain(|(to, body)| {
            let this = *to == host && body["kind"] == kind;
            if this {
                taken.push(body.clone());
            }
            !this
        });
        taken
    }

    /// The sender uses the trees that it was notified of.
    pub(super) fn move_on(&mut self, host: &str) {
        for tree in self.upcalls_of(host, "tree") {
            if tree["sender"] == host {
                let body = json!({"tree": tree["tree"], "generation": tree["generation"]});
                self.ask(host, Method::Post, template::MOVED, &tree["lane"].to_string(), body);
            }
        }
    }

    /// Follows a packet of a group from a host's port through the rules in the switches. Returns the hosts
    /// that it reaches, each once, and whether it reaches a node twice.
    pub(super) fn follow(&self, host: &str, port: &str, group: Ipv4Addr) -> (BTreeSet<String>, bool) {
        let topology = topology();
        let (mut reached, mut visited, mut twice) = (BTreeSet::new(), BTreeSet::new(), false);
        let mut waiting = vec![(host.to_owned(), port.to_owned())];
        while let Some((node, port)) = waiting.pop() {
            let from = topology.find(&node).unwrap();
            let Some(link) = topology.leaving(from).iter().find(|link| topology.port(**link) == port) else { continue };
            if !self.core.planner().works(link.cable()) {
                continue;
            }
            let to = topology.to(*link);
            let name = topology.node(to).name.clone();
            if !visited.insert(name.clone()) {
                twice = true;
            }
            if topology.is_host(to) {
                reached.insert(name);
            } else if let Some(ports) = self.switches.get(&name).and_then(|has| has.get(&group)) {
                waiting.extend(ports.iter().map(|port| (name.clone(), port.clone())));
            }
        }
        (reached, twice)
    }

    /// Every tree in use reaches exactly its receivers, once.
    pub(super) fn check(&mut self, id: u64) {
        let lane = self.see(id);
        let receivers: BTreeSet<String> =
            lane["receivers"].as_array().unwrap().iter().map(|r| r["host"].as_str().unwrap().to_owned()).collect();
        for tree in lane["trees"].as_array().unwrap() {
            if tree["phase"] == "lost" {
                continue;
            }
            let group = tree["group"].as_str().unwrap().parse().unwrap();
            let (reached, twice) = self.follow(lane["sender"].as_str().unwrap(), tree["port"].as_str().unwrap(), group);
            assert_eq!((&reached, twice), (&receivers, false), "{tree}");
        }
    }

    /// Groups in all switches.
    pub(super) fn groups(&self) -> BTreeSet<Ipv4Addr> {
        self.switches.values().flat_map(BTreeMap::keys).copied().collect()
    }

    /// Starts the controller again from the stored state; the switches stay as they are.
    pub(super) fn restart(&mut self) {
        let records: Vec<&[u8]> = self.records.iter().map(Vec::as_slice).collect();
        let before = self.core.snapshot();
        let mut core = Core::new(topology(), Limits::default(), self.core.options.clone()).unwrap();
        core.restore(None, &records).unwrap();
        assert_eq!(core.snapshot(), before, "the stored state differs");
        self.core = core;
        let decision = self.core.resume(self.now());
        self.take(decision);
    }

    /// Timers that look for another tree.
    pub(super) fn retries(&self) -> usize {
        self.core.later.iter().filter(|(_, what)| matches!(what, super::super::Later::Retry { .. })).count()
    }

    pub(super) fn last_order(&self) -> u64 {
        self.core.ordered
    }

    /// Numbers of the orders that are not carried out yet.
    pub(super) fn held_numbers(&self) -> Vec<u64> {
        self.held_back.iter().map(|order| order.number).collect()
    }

    /// The same controller after a store that failed: its state is loaded again.
    pub(super) fn reload(&mut self) {
        let records: Vec<&[u8]> = self.records.iter().map(Vec::as_slice).collect();
        self.core.restore(None, &records).unwrap();
        let decision = self.core.resume(self.now());
        self.take(decision);
    }

    /// The whole state that a decision may depend on, at the present time.
    pub(super) fn whole(&mut self) -> String {
        self.core.now = self.now();
        format!("{:?}", self.core)
    }

    pub(super) fn state_bytes(&self) -> Vec<u8> {
        state::encode(&self.core.state)
    }
}
