// SPDX-License-Identifier: Apache-2.0
//! After a restart: the stored lanes are allocated again, and the switches get everything anew.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use fide_planner::LinkId;

use super::state::{Lane, Phase, Standing};
use super::trees::{MOVE_GRACES, rules};
use super::{Core, Later, Out, SwitchOrder, request_id};

impl Core {
    /// After a restart: allocates the stored lanes again, over the same links.
    pub(super) fn hold_all(&mut self) {
        for cable in self.state.drained.clone() {
            if let Some(cable) = self.topology.find_cable(&cable) {
                self.planner.set_cable(cable, false);
            }
        }
        let lanes: Vec<(u64, Lane)> = self.state.lanes.iter().map(|(id, lane)| (*id, lane.clone())).collect();
        for (id, lane) in lanes.into_iter().filter(|(_, lane)| lane.standing == Standing::Held) {
            let links: Option<Vec<Vec<LinkId>>> = lane
                .trees
                .iter()
                .map(|tree| tree.links.iter().map(|link| self.link(link)).collect::<Option<Vec<_>>>())
                .collect();
            let held = links.map(|links| self.planner.hold(request_id(id), lane.request.clone(), &links));
            if !matches!(held, Some(Ok(_))) {
                tracing::warn!(
                    "lane {id} ({}) does not fit the network any more: it is planned anew",
                    lane.request.name
                );
            }
        }
    }

    /// After a restart, or when the switches' state is uncertain: orders everything that the switches
    /// should have.
    pub(super) fn order_anew(&mut self, out: &mut Out) -> Vec<SwitchOrder> {
        let mut wanted: BTreeMap<String, Vec<(Ipv4Addr, BTreeSet<String>)>> = self
            .topology
            .node_ids()
            .filter(|node| !self.topology.is_host(*node))
            .map(|node| (self.topology.node(node).name.clone(), Vec::new()))
            .collect();
        let lanes: Vec<(u64, Lane)> = self.state.lanes.iter().map(|(id, lane)| (*id, lane.clone())).collect();
        for (id, lane) in &lanes {
            if lane.standing == Standing::Ended {
                self.after(self.options.grace_ns, Later::Forget { lane: *id });
            }
            for (tree, state) in (0..).zip(&lane.trees) {
                for (links, generation) in [(&state.links, state.generation), (&state.former, state.generation + 1)] {
                    for (switch, ports) in rules(&self.topology, links) {
                        wanted.entry(switch).or_default().push((Core::group(lane.slot, tree, generation), ports));
                    }
                }
            }
        }
        let mut effects = Vec::new();
        let mut numbers: BTreeMap<String, u64> = BTreeMap::new();
        for (switch, install) in wanted {
            self.ordered += 1;
            numbers.insert(switch.clone(), self.ordered);
            effects.push(SwitchOrder { switch, number: self.ordered, anew: true, install, remove: vec![] });
        }
        for (id, lane) in lanes {
            for (tree, state) in (0..).zip(&lane.trees) {
                match state.phase {
                    Phase::Installing => {
                        // How much of the others' grace period is left is not known any more.
                        self.begin_ns.insert(id, self.now.boot_ns + self.options.grace_ns);
                        let switches = rules(&self.topology, &state.links).into_keys();
                        let waits: BTreeMap<_, _> = switches.map(|switch| (switch.clone(), numbers[&switch])).collect();
                        let nothing = waits.is_empty();
                        self.waits.insert((id, tree), waits);
                        if nothing {
                            self.ready(out, id, tree);
                        }
                    }
                    Phase::Lost => self.after(self.options.retry_ns, Later::Retry { lane: id, tree }),
                    Phase::Ready | Phase::Used if !state.former.is_empty() => {
                        let generation = state.generation;
                        self.after(self.options.grace_ns * MOVE_GRACES, Later::Sweep { lane: id, tree, generation });
                    }
                    Phase::Ready | Phase::Used => {}
                }
            }
            if lane.standing == Standing::Held && self.planner.allocation(request_id(id)).is_none() {
                let planned = self.replan_lane(out, id, lane.request.clone(), None);
                if planned.is_err() {
                    self.end_lane(out, id, "the network has changed, and it can no longer be held");
                }
            }
        }
        effects
    }
}
