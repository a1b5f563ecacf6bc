// SPDX-License-Identifier: Apache-2.0
//! The plan for programs. Times are ns. A key, once there, keeps its name and its meaning; a change of either counts
//! [`VERSION`] up, a new key does not.

use std::collections::BTreeMap;

use fide_planner::{CableId, Topology, topology::NodeKind};
use serde_json::{Value, json};

use super::{figures::Figures, model::Plan};

/// `format` in the JSON.
pub const FORMAT: &str = "fide-plan";
/// `version` in the JSON.
pub const VERSION: u32 = 1;

/// A plan; of its requests only those named in `only`, if any is.
///
/// ```text
/// { "format": "fide-plan", "version": 1,
///   "topology": { "hosts", "switches", "cables", "tiers": [ { "tier", "switches" } ], "generator": null or { "name", ... },
///     "broken_cables": [ "a--b" ] },
///   "limits", "rates",
///   "requests": [ { "id", "name", "sender", "size_max_bytes", "period_min_ns", "priority", "redundancy", "latency_max_ns",
///     "method", "proved_cheapest",
///     "overall": { "latency_min_ns", "latency_max_ns", "jitter_max_ns", "timeout_ns" },
///     "receivers": [ { "host", and as above } ],
///     "trees": [ { "broken", "overall", "receivers", "links": [ { "from", "to", "port", "cable" } ] } ],
///     "odds": { "probability_per_year", "years_between": null if never } } ],
///   "refused": [ { "request", "why" } ],
///   "links": [ { "link": "a>b", "cable", "from", "to", "port", "works", "trees", "lane_bps", "allowed_bps",
///     "backlog_bytes", "allowed_bytes", "delay_max_ns" } ] }
/// ```
#[must_use]
pub fn to_json<'a>(plan: impl Into<Plan<'a>>, only: &[String]) -> Value {
    let plan = plan.into();
    let Figures { requests, links } = Figures::of(plan).only(only);
    let named = |name: &String| only.is_empty() || only.contains(name);
    let refused = plan.refused.iter().filter(|refused| named(&refused.request.name));
    let refused: Vec<Value> =
        refused.map(|refused| json!({ "request": refused.request, "why": refused.why })).collect();
    json!({
        "format": FORMAT,
        "version": VERSION,
        "topology": topology(&plan),
        "limits": plan.planner.limits(),
        "rates": plan.rates,
        "requests": requests,
        "refused": refused,
        "links": links,
    })
}

fn topology(plan: &Plan<'_>) -> Value {
    let topology: &Topology = plan.planner.topology();
    let mut tiers: BTreeMap<u8, usize> = BTreeMap::new();
    for node in topology.nodes().iter().filter(|node| node.kind == NodeKind::Switch) {
        *tiers.entry(node.tier).or_default() += 1;
    }
    let cables = (0..topology.cables().len()).map(|at| CableId(u32::try_from(at).expect("at most MAX_CABLES")));
    let broken: Vec<String> =
        cables.filter(|cable| !plan.planner.works(*cable)).map(|cable| topology.cable_name(cable)).collect();
    let hosts = topology.hosts().count();
    json!({
        "hosts": hosts,
        "switches": topology.nodes().len() - hosts,
        "cables": topology.cables().len(),
        "tiers": tiers.iter().map(|(tier, switches)| json!({ "tier": tier, "switches": switches })).collect::<Vec<_>>(),
        "generator": plan.generator,
        "broken_cables": broken,
    })
}
