// SPDX-License-Identifier: Apache-2.0
//! Which tree is broken, and by which cable (FiDe §3.3, "Redundancy and tree recovery").
//!
//! A cable that loses its carrier is known at once from the switches at its ends. A cable that keeps its
//! carrier and carries nothing is known only from receivers that get one copy instead of two. The suspects
//! are the cables that all their paths share; if there are none, all cables of their paths. Cables on the
//! path of a receiver that misses nothing are not suspected. If that leaves no other tree, cables of hosts
//! are not avoided, because they most often have no alternative. A new tree avoids the suspects. If the
//! suspicion was too narrow, the receivers report the new tree too, and more cables are suspected. Late
//! reports change the suspicion.
//!
//! A fault that breaks one tree breaks others. So once a cable is suspected, every tree whose reports it
//! explains is replaced together with the first one, and later reports that it explains are not gathered
//! with others.

use std::collections::BTreeSet;

use fide_controller_api::failure::Failed;
use fide_controller_api::lane::{Generation, RefusedReport, Reported, Reports, TreeReport};
use fide_controller_api::limits::REPORTS_MAX;
use fide_controller_api::network::{Cable, CableRequest, CableSet, Network, Waiting};
use fide_controller_api::{Code, paths};
use fide_planner::{CableId, Tree};
use serde::Deserialize;
use serde_json::Value;

use super::asked::{Done, parse};
use super::state::{Phase, Record, Standing};
use super::trees::Suspects;
use super::{Core, Later, Out, request_id};
use crate::handler::{Answer, Peer};

/// Gather times until a tree is given up, and for reports from before the tree was used.
const GATHER_MORE: u64 = 10;

/// The receivers that miss a tree.
#[derive(Debug, Default)]
pub(super) struct Missed {
    by: BTreeSet<String>,
    /// Until then more reports are awaited.
    look_ns: Option<u64>,
    /// If there is no other tree by then, this one is lost. Set when the first look found no other tree.
    give_up_ns: Option<u64>,
    /// The cables that were suspected when the tree was given up.
    guess: BTreeSet<CableId>,
}

/// A tree as planned, and its receivers.
struct Planned<'a> {
    receivers: &'a [String],
    tree: &'a Tree,
}

impl Planned<'_> {
    /// The cables to a receiver; `None` if it is not one of this tree.
    fn way(&self, receiver: &str) -> Option<BTreeSet<CableId>> {
        self.receivers.iter().position(|other| other == receiver).map(|j| self.way_to(j))
    }

    /// The cables to receiver `j`.
    fn way_to(&self, j: usize) -> BTreeSet<CableId> {
        self.tree.path(j).into_iter().map(|hop| self.tree.hops()[hop].link.cable()).collect()
    }
}

impl Core {
    /// A receiver reports how several trees reach it, each as in [`Core::report`]. Refused reports are in
    /// the answer.
    pub(super) fn reports(&mut self, out: &mut Out, peer: &Peer, body: &Value) -> Done<Reported> {
        let Reports::<Value> { reports } = parse(body)?;
        if reports.len() > REPORTS_MAX {
            let message = format!("{} reports; send at most {REPORTS_MAX} at once", reports.len());
            return Err(Answer::error(422, Code::BadRequest, message));
        }
        let mut refused = Vec::new();
        for mut report in reports {
            let lane = report.as_object_mut().and_then(|report| report.remove("lane")).unwrap_or_default();
            if let Err(answer) = self.report(out, peer, &lane.to_string(), &report) {
                let Failed { error } = Failed::deserialize(&answer.body).expect("a refusal");
                refused.push(RefusedReport { lane, error });
            }
        }
        Ok(Reported { refused })
    }

    /// A receiver reports how a tree reaches it.
    pub(super) fn report(&mut self, out: &mut Out, peer: &Peer, lane: &str, body: &Value) -> Done<Generation> {
        let id = self.lane_for(peer, lane)?;
        let TreeReport { tree, generation, missing } = parse(body)?;
        let held = &self.state.lanes[&id];
        let host = peer.identity.name.as_str();
        if !held.request.receivers.iter().any(|receiver| receiver == host) {
            let message = format!("{host} does not receive lane {id}; its receivers report");
            return Err(Answer::error(403, Code::NotAReceiver, message));
        }
        let Some(state) = held.trees.get(usize::from(tree)) else {
            return Err(Answer::error(422, Code::NoSuchTree, format!("lane {id} has no tree {tree}")));
        };
        // A lost tree is heard again: its path to this receiver works.
        if state.generation == generation && state.phase == Phase::Lost && !missing {
            self.heard_again(out, id, tree, host);
        }
        // A report about an earlier generation says nothing about the present tree.
        let state = &self.state.lanes[&id].trees[usize::from(tree)];
        let current = state.generation == generation && state.phase != Phase::Installing;
        if current {
            let gathers = state.phase != Phase::Ready;
            let missed = self.missing.entry((id, tree)).or_default();
            let news = if missing { missed.by.insert(host.to_owned()) } else { missed.by.remove(host) };
            if missed.by.is_empty() {
                self.missing.remove(&(id, tree));
            } else if news && missing && gathers && !self.replace_explained(out, id, tree) {
                self.gather(id, tree);
            }
        }
        Ok(Generation { generation: self.state.lanes[&id].trees[usize::from(tree)].generation })
    }

    /// Waits for further reports before looking for the fault. If the first look found no other tree, a
    /// later report may be the one that shows which tree is possible.
    fn gather(&mut self, id: u64, tree: u8) {
        let soon = self.now.boot_ns + self.options.gather_ns;
        let Some(missed) = self.missing.get(&(id, tree)) else { return };
        if missed.look_ns.is_none_or(|at| missed.give_up_ns.is_some() && at > soon) {
            self.look_at(id, tree, soon);
        }
    }

    fn look_at(&mut self, id: u64, tree: u8, at_ns: u64) {
        let Some(missed) = self.missing.get_mut(&(id, tree)) else { return };
        missed.look_ns = Some(at_ns);
        self.later.insert((at_ns, Later::Gathered { lane: id, tree }));
    }

    /// The sender uses a tree from now on. Receivers that missed it before have missed nothing; the ones
    /// that still do report again.
    pub(super) fn await_first(&mut self, id: u64, tree: u8) {
        if self.missing.get(&(id, tree)).is_some_and(|missed| missed.look_ns.is_none()) {
            self.look_at(id, tree, self.now.boot_ns + self.options.gather_ns * GATHER_MORE);
        }
    }

    /// The rules of a lost tree stay, and its sender keeps sending: a receiver that gets it again has a
    /// working path.
    fn heard_again(&mut self, out: &mut Out, id: u64, tree: u8, host: &str) {
        let Some(way) = self.planned(id, tree).and_then(|planned| planned.way(host)) else { return };
        self.suspected.retain(|cable| !way.contains(cable));
        self.retry(out, id, tree);
    }

    /// The receivers that miss a tree have had time to report.
    pub(super) fn find_fault(&mut self, out: &mut Out, id: u64, tree: u8) {
        let now_ns = self.now.boot_ns;
        let Some(missed) = self.missing.get_mut(&(id, tree)) else { return };
        // Later reports have moved the time of this look.
        if missed.look_ns.is_none_or(|at| at > now_ns) {
            return;
        }
        missed.look_ns = None;
        let (reporters, earlier) = (missed.by.clone(), std::mem::take(&mut missed.guess));
        // A suspicion that was based on fewer reports does not count any more.
        self.suspected.retain(|cable| !earlier.contains(cable));
        if self.replace_explained(out, id, tree) {
            return;
        }
        let guesses = self.guesses(id, tree, &reporters);
        let Some(first) = guesses.first().cloned() else { return };
        for guess in &guesses {
            let why = self.why(&reporters, guess);
            match self.replace_tree(out, id, tree, guess, Suspects::Never, &why) {
                None => return,
                Some(Ok(())) => {
                    self.missing.remove(&(id, tree));
                    self.suspect(guess);
                    return self.replace_all_explained(out);
                }
                Some(Err(_)) => {}
            }
        }
        let Some(missed) = self.missing.get_mut(&(id, tree)) else { return };
        // Before a tree is given up, further receivers may report.
        let give_up_ns = *missed.give_up_ns.get_or_insert(now_ns + self.options.gather_ns * GATHER_MORE);
        if now_ns < give_up_ns {
            return self.look_at(id, tree, give_up_ns);
        }
        missed.guess.clone_from(&first);
        let why = self.why(&reporters, &first);
        self.suspect(&first);
        self.recover(out, id, tree, &first, Suspects::Never, &why);
    }

    fn why(&self, reporters: &BTreeSet<String>, suspects: &BTreeSet<CableId>) -> String {
        let who: Vec<&str> = reporters.iter().map(String::as_str).collect();
        let names: Vec<String> = suspects.iter().map(|cable| self.topology.cable_name(*cable)).collect();
        format!("{} got one copy only; suspected: {}", who.join(", "), names.join(", "))
    }

    /// Replaces the tree if the present suspects explain all receivers that miss it. Whether it was
    /// replaced.
    fn replace_explained(&mut self, out: &mut Out, id: u64, tree: u8) -> bool {
        let Some(missed) = self.missing.get(&(id, tree)) else { return false };
        let Some(planned) = self.planned(id, tree) else { return false };
        let mut cause = BTreeSet::new();
        for receiver in &missed.by {
            let Some(way) = planned.way(receiver) else { return false };
            let suspected = &way & &self.suspected;
            if suspected.is_empty() {
                return false;
            }
            cause.extend(suspected);
        }
        let why = self.why(&missed.by, &cause);
        let replaced = matches!(self.replace_tree(out, id, tree, &cause, Suspects::Never, &why), Some(Ok(())));
        if replaced {
            self.missing.remove(&(id, tree));
        }
        replaced
    }

    /// There are more suspects now, which may explain other trees' reports.
    fn replace_all_explained(&mut self, out: &mut Out) {
        let phase = |(id, tree): &(u64, u8)| {
            let lane = self.state.lanes.get(id)?;
            lane.trees.get(usize::from(*tree)).map(|state| state.phase)
        };
        let used = |key: &&(u64, u8)| matches!(phase(key), Some(Phase::Used | Phase::Lost));
        let missing: Vec<(u64, u8)> = self.missing.keys().filter(used).copied().collect();
        for (id, tree) in missing {
            self.replace_explained(out, id, tree);
        }
    }

    fn planned(&self, id: u64, tree: u8) -> Option<Planned<'_>> {
        let allocation = self.planner.allocation(request_id(id))?;
        Some(Planned { receivers: &allocation.request.receivers, tree: allocation.trees.get(usize::from(tree))? })
    }

    /// Which cables may be broken if these receivers miss a tree, the likeliest first.
    fn guesses(&self, id: u64, tree: u8, reporters: &BTreeSet<String>) -> Vec<BTreeSet<CableId>> {
        let Some(planned) = self.planned(id, tree) else { return Vec::new() };
        let (mut all, mut shared, mut cleared) = (BTreeSet::new(), None::<BTreeSet<CableId>>, BTreeSet::new());
        for (j, receiver) in planned.receivers.iter().enumerate() {
            let way = planned.way_to(j);
            if reporters.contains(receiver) {
                all.extend(&way);
                shared = Some(shared.map_or(way.clone(), |shared| &shared & &way));
            } else {
                cleared.extend(way);
            }
        }
        let suspects = &all - &cleared;
        let shared = &shared.unwrap_or_default() - &cleared;
        let trunk = |cable: &&CableId| {
            let ends = self.topology.cables()[cable.at()].ends;
            ends.iter().all(|end| !self.topology.is_host(*end))
        };
        let trunks = |of: &BTreeSet<CableId>| of.iter().filter(trunk).copied().collect::<BTreeSet<_>>();
        // If every cable of their paths also serves another receiver, only the whole paths can be avoided.
        let mut guesses = vec![shared.clone(), suspects.clone(), trunks(&suspects), all.clone(), trunks(&all)];
        if !suspects.is_empty() {
            guesses.truncate(3);
        }
        guesses.retain(|guess| !guess.is_empty());
        guesses.dedup();
        guesses
    }

    fn suspect(&mut self, cables: &BTreeSet<CableId>) {
        for cable in cables {
            if self.suspected.insert(*cable) {
                self.after(self.options.suspicion_ns, Later::Trust { cable: cable.0 });
            }
        }
    }

    /// Takes a cable's carrier, as the switch at one of its ends sees it.
    pub(super) fn carrier(&mut self, out: &mut Out, switch: &str, port: &str, up: bool) {
        let Some(node) = self.topology.find(switch) else { return };
        let link = self.topology.leaving(node).iter().find(|link| self.topology.port(**link) == port);
        let Some(cable) = link.map(|link| link.cable()) else { return };
        let name = self.topology.cable_name(cable);
        if up {
            if !self.state.drained.contains(&name) {
                self.planner.set_cable(cable, true);
            }
            self.suspected.remove(&cable);
            self.retry_lost(out);
        } else {
            self.cut(out, cable, &format!("cable {name} has no carrier"));
        }
    }

    /// Replaces all trees over a cable that does not work.
    fn cut(&mut self, out: &mut Out, cable: CableId, why: &str) {
        self.planner.set_cable(cable, false);
        for (id, tree) in self.planner.users(cable) {
            let tree = u8::try_from(tree).expect("at most 3 trees");
            self.recover(out, id.0, tree, &BTreeSet::new(), Suspects::RatherThanNone, why);
        }
    }

    pub(super) fn trust(&mut self, cable: CableId) {
        self.suspected.remove(&cable);
    }

    pub(super) fn retry(&mut self, out: &mut Out, id: u64, tree: u8) {
        let state = self.state.lanes.get(&id).and_then(|lane| lane.trees.get(usize::from(tree)));
        if state.is_none_or(|state| state.phase != Phase::Lost) {
            return;
        }
        let broken = self.planner.broken(request_id(id)).contains(&usize::from(tree));
        let suspect = self.planner.allocation(request_id(id)).is_some_and(|allocation| {
            allocation.trees[usize::from(tree)].links().any(|link| self.suspected.contains(&link.cable()))
        });
        if broken || suspect {
            self.recover(out, id, tree, &BTreeSet::new(), Suspects::Never, "it was lost");
        } else {
            self.revive(out, id, tree);
        }
    }

    /// Uses a lost tree again: its cable is repaired, and its rules are still in the switches.
    fn revive(&mut self, out: &mut Out, id: u64, tree: u8) {
        let mut state = self.state.lanes[&id].trees[usize::from(tree)].clone();
        state.phase = Phase::Installing;
        self.apply(out, Record::Tree(id, tree, state));
        self.install(out, id, tree);
    }

    fn retry_lost(&mut self, out: &mut Out) {
        let lost: Vec<(u64, u8)> = self
            .state
            .lanes
            .iter()
            .filter(|(_, lane)| lane.standing == Standing::Held)
            .flat_map(|(id, lane)| (0..).zip(&lane.trees).map(|(tree, state)| (*id, tree, state.phase)))
            .filter(|(_, _, phase)| *phase == Phase::Lost)
            .map(|(id, tree, _)| (id, tree))
            .collect();
        for (id, tree) in lost {
            self.retry(out, id, tree);
        }
    }

    /// An operator takes a cable out of use, or puts it back.
    pub(super) fn set_cable(&mut self, out: &mut Out, cable: &str, body: &Value) -> Done<CableSet> {
        let CableRequest { in_use } = parse(body)?;
        let Some(found) = self.topology.find_cable(cable) else {
            let shown: String = cable.chars().take(160).collect();
            return Err(Answer::error(
                404,
                Code::NoSuchCable,
                format!("there is no cable \"{}\"; {} lists them", shown.escape_debug(), paths::NETWORK),
            ));
        };
        let name = self.topology.cable_name(found);
        self.apply(out, Record::Drained(name.clone(), !in_use));
        if in_use {
            self.planner.set_cable(found, true);
            self.retry_lost(out);
        } else {
            self.cut(out, found, &format!("an operator has taken cable {name} out of use"));
        }
        Ok(CableSet { cable: name, in_use })
    }

    pub(super) fn network(&self) -> Network {
        let cables = (0..u32::try_from(self.topology.cables().len()).expect("bounded")).map(CableId).map(|cable| {
            let name = self.topology.cable_name(cable);
            Cable {
                works: self.planner.works(cable),
                suspected: self.suspected.contains(&cable),
                drained: self.state.drained.contains(&name),
                trees: self.planner.users(cable).len(),
                cable: name,
            }
        });
        let waiting = self.waits.iter().map(|((lane, tree), waits)| Waiting {
            lane: *lane,
            tree: *tree,
            switches: waits.keys().cloned().collect(),
        });
        Network { cables: cables.collect(), waiting_for_switches: waiting.collect() }
    }
}
