// SPDX-License-Identifier: Apache-2.0
//! From planned links to installed rules, and from one tree to another without a gap.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use fide_controller_api::Code;
use fide_controller_api::event::{Event as Upcall, Reason, RedundancyLost, TreeReady};
use fide_controller_api::lane::{self as api, Link, Moved};
use fide_planner::{LinkId, NodeId};
use serde_json::Value;

use super::asked::{Done, parse};
use super::notify::members;
use super::state::{Lane, Phase, Record, Standing, TreeState};
use super::{Core, Later, Out, request_id};
use crate::handler::{Answer, Peer};

/// Grace periods in which a sender may report that it moved, before the old tree is removed anyway.
pub(super) const MOVE_GRACES: u64 = 20;

/// How to treat cables that may be broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Suspects {
    /// Use them if there is no tree without them.
    RatherThanNone,
    /// Never use them: the tree was lost because of them.
    Never,
}

/// For each switch the ports that a tree leaves by.
pub(super) fn rules(topology: &fide_planner::Topology, links: &[Link]) -> BTreeMap<String, BTreeSet<String>> {
    let mut rules: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (from, port, _) in links {
        if topology.find(from).is_some_and(|node| !topology.is_host(node)) {
            rules.entry(from.clone()).or_default().insert(port.clone());
        }
    }
    rules
}

impl Core {
    /// The links of a planned tree, by names, which mean the same after a restart with another topology.
    pub(super) fn links_of(&self, id: u64, tree: u8) -> Vec<Link> {
        let name = |node: NodeId| self.topology.node(node).name.clone();
        let allocation = self.planner.allocation(request_id(id)).expect("it is held");
        allocation.trees[usize::from(tree)]
            .links()
            .map(|link| {
                let (from, to) = (self.topology.from(link), self.topology.to(link));
                (name(from), self.topology.port(link).to_owned(), name(to))
            })
            .collect()
    }

    pub(super) fn link(&self, (from, port, to): &Link) -> Option<LinkId> {
        let node = self.topology.find(from)?;
        let fits = |link: &&LinkId| {
            self.topology.port(**link) == port && self.topology.node(self.topology.to(**link)).name == *to
        };
        self.topology.leaving(node).iter().find(fits).copied()
    }

    /// Orders a tree's rules; the tree is used when all switches have them.
    pub(super) fn install(&mut self, out: &mut Out, id: u64, tree: u8) {
        let lane = &self.state.lanes[&id];
        let state = &lane.trees[usize::from(tree)];
        let group = Core::group(lane.slot, tree, state.generation);
        let mut waits = BTreeMap::new();
        for (switch, ports) in rules(&self.topology, &state.links) {
            let order = self.order(out, &switch);
            order.remove.retain(|other| *other != group);
            order.install.push((group, ports));
            waits.insert(switch, order.number);
        }
        let nothing = waits.is_empty();
        self.waits.insert((id, tree), waits);
        // A tree of one cable between two hosts passes no switch.
        if nothing {
            self.ready(out, id, tree);
        }
    }

    pub(super) fn remove_rules(&mut self, out: &mut Out, group: Ipv4Addr, links: &[Link]) {
        for (switch, _) in rules(&self.topology, links) {
            let order = self.order(out, &switch);
            order.install.retain(|(other, _)| *other != group);
            order.remove.push(group);
        }
    }

    /// A switch has carried out an order.
    pub(super) fn applied(&mut self, out: &mut Out, switch: &str, number: u64, error: Option<String>) {
        let concerned: Vec<(u64, u8)> = self
            .waits
            .iter()
            .filter(|(_, waits)| waits.get(switch).is_some_and(|order| *order <= number))
            .map(|(key, _)| *key)
            .collect();
        for (id, tree) in concerned {
            if let Some(error) = &error {
                // The switch keeps trying; meanwhile a tree without it is used.
                let cables = self.cables_of(switch);
                self.waits.remove(&(id, tree));
                let why = format!("switch {switch} refuses: {error}");
                self.recover(out, id, tree, &cables, Suspects::RatherThanNone, &why);
                continue;
            }
            let waits = self.waits.get_mut(&(id, tree)).expect("listed above");
            waits.remove(switch);
            if waits.is_empty() {
                self.ready(out, id, tree);
            }
        }
    }

    pub(super) fn cables_of(&self, switch: &str) -> BTreeSet<fide_planner::CableId> {
        let node = self.topology.find(switch);
        node.into_iter().flat_map(|node| self.topology.leaving(node)).map(|link| link.cable()).collect()
    }

    pub(super) fn ready(&mut self, out: &mut Out, id: u64, tree: u8) {
        self.waits.remove(&(id, tree));
        let generation = self.state.lanes[&id].trees[usize::from(tree)].generation;
        match self.begin_ns.get(&id).copied().filter(|at| *at > self.now.boot_ns) {
            Some(at) => {
                self.later.insert((at, Later::Begin { lane: id, tree, generation }));
            }
            None => self.begin(out, id, tree, generation),
        }
    }

    /// Notifies the sender and the receivers that a tree is installed.
    pub(super) fn begin(&mut self, out: &mut Out, id: u64, tree: u8, generation: u32) {
        let Some(lane) = self.state.lanes.get(&id) else { return };
        let Some(mut state) = lane.trees.get(usize::from(tree)).cloned() else { return };
        if state.generation != generation || state.phase != Phase::Installing || lane.standing == Standing::Ended {
            return;
        }
        state.phase = Phase::Ready;
        let event = Upcall::Tree(TreeReady {
            lane: id,
            name: lane.request.name.clone(),
            sender: lane.request.sender.clone(),
            label: lane.label,
            tree: Core::tree(lane, tree, &state),
        });
        out.upcalls.extend(members(lane).into_iter().map(|host| (host, event.clone())));
        let has_former = !state.former.is_empty();
        self.apply(out, Record::Tree(id, tree, state));
        self.missing.remove(&(id, tree));
        if has_former {
            self.after(self.options.grace_ns * MOVE_GRACES, Later::Sweep { lane: id, tree, generation });
        }
    }

    /// A tree, as the API describes it.
    pub(super) fn tree(lane: &Lane, tree: u8, state: &TreeState) -> api::Tree {
        let port = state.links.iter().find(|(from, ..)| *from == lane.request.sender).map(|(_, port, _)| port.clone());
        api::Tree {
            tree,
            generation: state.generation,
            group: Core::group(lane.slot, tree, state.generation),
            groups: [Core::group(lane.slot, tree, 0), Core::group(lane.slot, tree, 1)],
            port,
            phase: match state.phase {
                Phase::Installing => api::Phase::Installing,
                Phase::Ready => api::Phase::Ready,
                Phase::Used => api::Phase::Used,
                Phase::Lost => api::Phase::Lost,
            },
            links: state.links.clone(),
        }
    }

    /// The sender reports that it uses a tree of this generation from now on.
    pub(super) fn moved(&mut self, out: &mut Out, peer: &Peer, lane: &str, body: &Value) -> Done<api::Generation> {
        let id = self.own_lane(peer, lane)?;
        let Moved { tree, generation } = parse(body)?;
        let Some(state) = self.state.lanes[&id].trees.get(usize::from(tree)).cloned() else {
            return Err(Answer::error(422, Code::NoSuchTree, format!("lane {id} has no tree {tree}")));
        };
        if state.generation != generation {
            // It will be notified of the newer generation, or was already.
            return Ok(api::Generation { generation: state.generation });
        }
        if state.phase == Phase::Ready {
            self.apply(out, Record::Tree(id, tree, TreeState { phase: Phase::Used, ..state }));
            self.await_first(id, tree);
            self.after(0, Later::Sweep { lane: id, tree, generation });
        }
        Ok(api::Generation { generation })
    }

    /// Removes the former tree from the switches.
    pub(super) fn sweep(&mut self, out: &mut Out, id: u64, tree: u8, generation: u32) {
        let Some(lane) = self.state.lanes.get(&id) else { return };
        let Some(state) = lane.trees.get(usize::from(tree)).cloned() else { return };
        if state.generation != generation || state.former.is_empty() {
            return;
        }
        let group = Core::group(lane.slot, tree, generation + 1);
        self.remove_rules(out, group, &state.former);
        self.apply(out, Record::Tree(id, tree, TreeState { former: Vec::new(), ..state }));
    }

    /// Plans another tree for a broken one; it is announced and used as soon as it is installed. If there
    /// is none, the tree is lost, and another is looked for later.
    pub(super) fn recover(
        &mut self,
        out: &mut Out,
        id: u64,
        tree: u8,
        avoid: &BTreeSet<fide_planner::CableId>,
        suspects: Suspects,
        why: &str,
    ) {
        let Some(Err(refusal)) = self.replace_tree(out, id, tree, avoid, suspects, why) else { return };
        let lane = self.state.lanes[&id].clone();
        let mut state = lane.trees[usize::from(tree)].clone();
        if state.phase != Phase::Lost {
            let name = &lane.request.name;
            tracing::warn!("lane {id} ({name}): tree {tree} is lost ({why}), and there is no other: {refusal}");
            self.notify_lost(out, &lane, id, tree, why, &refusal.to_string());
            state.phase = Phase::Lost;
            self.apply(out, Record::Tree(id, tree, state));
        }
        // One retry for each tree, however often its loss is noticed.
        let retry = Later::Retry { lane: id, tree };
        self.later.retain(|(_, what)| *what != retry);
        self.after(self.options.retry_ns, retry);
    }

    /// Plans another tree around `avoid` and all other suspected cables. None: there is nothing to replace.
    pub(super) fn replace_tree(
        &mut self,
        out: &mut Out,
        id: u64,
        tree: u8,
        avoid: &BTreeSet<fide_planner::CableId>,
        suspects: Suspects,
        why: &str,
    ) -> Option<Result<(), fide_planner::Refusal>> {
        let lane = self.state.lanes.get(&id).cloned()?;
        if lane.standing != Standing::Held || self.planner.allocation(request_id(id)).is_none() {
            return None;
        }
        let clear = avoid | &self.suspected;
        let mut state = lane.trees[usize::from(tree)].clone();
        let mut replaced = self.planner.replace(request_id(id), usize::from(tree), &clear);
        if replaced.is_err() && suspects == Suspects::RatherThanNone {
            replaced = self.planner.replace(request_id(id), usize::from(tree), avoid);
        }
        let changed = match replaced {
            Ok(changed) => changed,
            Err(refusal) => return Some(Err(refusal)),
        };
        let links = self.links_of(id, tree);
        if links == state.links && state.phase != Phase::Lost {
            return None;
        }
        // If the last move was not finished, its group is reused: the rest of the former tree goes now.
        if !state.former.is_empty() {
            let group = Core::group(lane.slot, tree, state.generation + 1);
            self.remove_rules(out, group, &state.former);
        }
        state.former = std::mem::replace(&mut state.links, links);
        state.generation += 1;
        state.phase = Phase::Installing;
        let contract = self.planner.allocation(request_id(id)).expect("it is held").contract.clone();
        self.apply(out, Record::Tree(id, tree, state));
        // A lane that moves is itself among the changed ones.
        let (own, others): (Vec<_>, Vec<_>) = changed.into_iter().partition(|changed| changed.id.0 == id);
        self.notify_changed(out, id, others);
        if !own.is_empty() || contract != lane.contract {
            self.apply(out, Record::Contract(id, contract));
            self.notify_contract(out, id, Reason::Te);
        }
        tracing::info!("lane {id} ({}): tree {tree} is replaced, because {why}", lane.request.name);
        self.install(out, id, tree);
        Some(Ok(()))
    }

    fn notify_lost(&mut self, out: &mut Out, lane: &Lane, id: u64, tree: u8, why: &str, refusal: &str) {
        let event = Upcall::RedundancyLost(RedundancyLost {
            lane: id,
            name: lane.request.name.clone(),
            sender: lane.request.sender.clone(),
            tree,
            why: why.to_owned(),
            no_other: refusal.to_owned(),
            policy: self.options.without_redundancy,
        });
        out.upcalls.extend(members(lane).into_iter().map(|host| (host, event.clone())));
    }
}
