// SPDX-License-Identifier: Apache-2.0
//! What the controller holds, as a planner that can be drawn.

use std::collections::BTreeSet;

use anyhow::{Context, anyhow};
use fide_planner::{LinkId, Planner, Request, RequestId, file};
use serde_json::Value;

use super::{plane::Way, site::Site};

/// The network with all lanes as they are now.
pub(super) fn state(site: &mut Site) -> anyhow::Result<Planner> {
    let file = file::parse(&site.network)?;
    let mut planner = Planner::new(file.topology, file.limits)?;
    for cable in site.ask("/v1/network")?["cables"].as_array().context("no cables")? {
        let name = cable["cable"].as_str().context("a cable without a name")?;
        if cable["works"] == false {
            let cable = planner.topology().find_cable(name).with_context(|| format!("cable {name}"))?;
            planner.set_cable(cable, false);
        }
    }
    for lane in site.ask("/v1/lanes")?["lanes"].as_array().context("no lanes")? {
        let id = RequestId(lane["lane"].as_u64().context("a lane without a number")?);
        let text = |value: &Value| value.as_str().map(str::to_owned).context("a name is missing");
        let number = |key: &str| lane["resources"][key].as_u64().with_context(|| format!("lane {}: no {key}", id.0));
        let receivers = lane["receivers"].as_array().context("no receivers")?;
        let trees = lane["trees"].as_array().context("no trees")?;
        let request = Request {
            name: format!("heartbeats of {}", text(&lane["sender"])?),
            sender: text(&lane["sender"])?,
            receivers: receivers.iter().map(|receiver| text(&receiver["host"])).collect::<Result<_, _>>()?,
            size_max_bytes: number("size_max_bytes")?,
            period_min_ns: number("period_min_ns")?,
            priority: 0,
            redundancy: u8::try_from(trees.len())?,
            latency_max_ns: None,
        };
        let links: Vec<Vec<LinkId>> =
            trees.iter().map(|tree| links(&planner, &tree["links"])).collect::<Result<_, _>>()?;
        planner.hold(id, request, &links)?;
    }
    Ok(planner)
}

/// Which host hears which over which tree by a link that `hits` takes, by the names of its ends.
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

fn links(planner: &Planner, told: &Value) -> anyhow::Result<Vec<LinkId>> {
    let topology = planner.topology();
    told.as_array()
        .context("a tree without links")?
        .iter()
        .map(|link| {
            let (Some(from), Some(port)) = (link[0].as_str(), link[1].as_str()) else {
                return Err(anyhow!("{link} is no link"));
            };
            let node = topology.find(from).with_context(|| format!("no node {from}"))?;
            let found = topology.leaving(node).iter().find(|link| topology.port(**link) == port);
            found.copied().with_context(|| format!("{from} has no port {port}"))
        })
        .collect()
}
