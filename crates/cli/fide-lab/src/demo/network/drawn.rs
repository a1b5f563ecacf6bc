// SPDX-License-Identifier: Apache-2.0
//! The controller's plan, as a planner that can be drawn.

use std::collections::BTreeSet;

use anyhow::Context;
use fide_controller_api::{
    lane::{Lanes, Link},
    network::Network,
    paths,
};
use fide_planner::{LinkId, Planner, Request, RequestId, file};

use super::{plane::Way, site::Site};

/// The network with all lanes in their present state.
pub(super) fn state(site: &mut Site) -> anyhow::Result<Planner> {
    let file = file::parse(&site.network)?;
    let mut planner = Planner::new(file.topology, file.limits)?;
    let network: Network = site.ask(paths::NETWORK)?;
    for cable in network.cables.iter().filter(|cable| !cable.works) {
        let name = cable.cable.as_str();
        let cable = planner.topology().find_cable(name).with_context(|| format!("cable {name}"))?;
        planner.set_cable(cable, false);
    }
    let Lanes { lanes } = site.ask(paths::LANES)?;
    for lane in lanes {
        let bounds = lane.resources.bounds().with_context(|| format!("lane {} has no bounds", lane.lane))?;
        let request = Request {
            name: format!("heartbeats of {}", lane.sender),
            sender: lane.sender,
            receivers: lane.receivers.into_iter().map(|receiver| receiver.host).collect(),
            size_max_bytes: bounds.size_max_bytes,
            period_min_ns: bounds.period_min_ns,
            priority: 0,
            redundancy: u8::try_from(lane.trees.len())?,
            latency_max_ns: None,
        };
        let links: Vec<Vec<LinkId>> =
            lane.trees.iter().map(|tree| links(&planner, &tree.links)).collect::<Result<_, _>>()?;
        planner.hold(RequestId(lane.lane), request, &links)?;
    }
    Ok(planner)
}

/// Which hosts hear which others, over which tree, through a link that `hits` accepts by the names of its
/// ends.
pub(super) fn ways(planner: &Planner, hits: impl Fn(&str, &str) -> bool) -> BTreeSet<Way> {
    let topology = planner.topology();
    let number = |name: &str| name.trim_start_matches('h').parse().unwrap_or(0);
    let mut ways = BTreeSet::new();
    for (_, allocation) in planner.allocations() {
        for (tree, planned) in allocation.trees.iter().enumerate() {
            for (j, receiver) in allocation.request.receivers.iter().enumerate() {
                let hit = planned.path(j).into_iter().any(|hop| {
                    let link = planned.hops()[hop].link;
                    let [from, to] = [topology.from(link), topology.to(link)].map(|node| &topology.node(node).name);
                    hits(from, to)
                });
                if hit {
                    let peer = number(&allocation.request.sender);
                    ways.insert(Way { observer: number(receiver), peer, tree });
                }
            }
        }
    }
    ways
}

fn links(planner: &Planner, given: &[Link]) -> anyhow::Result<Vec<LinkId>> {
    let topology = planner.topology();
    given
        .iter()
        .map(|(from, port, _)| {
            let node = topology.find(from).with_context(|| format!("no node {from}"))?;
            let found = topology.leaving(node).iter().find(|link| topology.port(**link) == port);
            found.copied().with_context(|| format!("{from} has no port {port}"))
        })
        .collect()
}
