// SPDX-License-Identifier: Apache-2.0
//! The plan for programs. Times are ns. A key, once introduced, keeps its name and its meaning. A change of
//! either increments [`VERSION`]; a new key does not.

use std::collections::BTreeMap;

use fide_planner::{Topology, request, topology::NodeKind};
use serde_json::{Value, json};

use super::{
    figures::{self, Figures},
    model::Plan,
};

/// `format` in the JSON.
pub const FORMAT: &str = "fide-plan";
/// `version` in the JSON. Version 2 has the packet model, all cables with their parameters, and the wire
/// bytes of a request's packet.
pub const VERSION: u32 = 2;

/// A plan as JSON, with only the requests named in `only`; if it names none, with all. Every field with its
/// unit is in `docs/develop/plan-json.md`.
///
/// ```text
/// { "format": "fide-plan", "version": 2,
///   "packet_model": { "packet_overhead_bytes", "packet_wire_min_bytes", "priorities", "latency_begins", "latency_ends" },
///   "topology": { "hosts", "switches", "cables", "tiers": [ { "tier", "switches" } ], "generator": null or { "name", ... },
///     "broken_cables": [ "a--b" ] },
///   "limits", "rates",
///   "requests": [ { "id", "name", "sender", "size_max_bytes", "wire_max_bytes", "period_min_ns", "bandwidth_bps",
///     "priority", "redundancy", "latency_max_ns", "method", "proved_cheapest",
///     "overall": { "latency_min_ns", "latency_max_ns", "jitter_max_ns", "timeout_ns" },
///     "receivers": [ { "host", and as above } ],
///     "trees": [ { "broken", "overall", "receivers", "links": [ { "from", "to", "port", "cable" } ] } ],
///     "odds": { "probability_per_year", "years_between": null if never } } ],
///   "refused": [ { "request", "why" } ],
///   "cables": [ { "cable": "a--b", "ends", "ports", "bandwidth_bps", "queue_bytes", "latency_min_ns", "jitter_max_ns",
///     "reserved_bps", "reserved_burst_bytes", "kind", "failure_per_year", "allowed", "works", "trees": 0 if not used } ],
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
        "packet_model": {
            "packet_overhead_bytes": request::OVERHEAD_BYTES,
            "packet_wire_min_bytes": request::WIRE_MIN_BYTES,
            "priorities": request::PRIORITIES,
            "latency_begins": "in_sender_queue",
            "latency_ends": "processed_at_receiver",
        },
        "topology": topology(&plan),
        "limits": plan.planner.limits(),
        "rates": plan.rates,
        "requests": requests,
        "refused": refused,
        "cables": figures::cables(&plan),
        "links": links,
    })
}

fn topology(plan: &Plan<'_>) -> Value {
    let topology: &Topology = plan.planner.topology();
    let mut tiers: BTreeMap<u8, usize> = BTreeMap::new();
    for node in topology.nodes().iter().filter(|node| node.kind == NodeKind::Switch) {
        *tiers.entry(node.tier).or_default() += 1;
    }
    let broken = topology.cable_ids().filter(|cable| !plan.planner.works(*cable));
    let broken: Vec<String> = broken.map(|cable| topology.cable_name(cable)).collect();
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
