// SPDX-License-Identifier: Apache-2.0
//! Topology, limits and requests as one TOML file.
//!
//! A topology is generated (`generator`), or written down (`[[host]]`, `[[switch]]`, `[[cable]]`), or both:
//! what is written down is added to what is generated. Times and rates carry their unit in their key.
//!
//! ```
//! let file = fide_planner::file::parse(r#"
//!     [topology]
//!     generator = "leaf_spine"      # or "fat_tree", with k and homing
//!     groups = 2
//!     homing = 2                    # leaves of a group, and cables of each host
//!     spines = 2
//!     hosts = 2                     # of each group: h1 to h4
//!
//!     [cables]                      # what every cable is like unless it says otherwise
//!     bandwidth_bps = 10_000_000_000
//!     queue_bytes = 131072
//!     latency_min_ns = 500
//!     jitter_max_ns = 50
//!     host_latency_min_ns = 2200
//!     host_jitter_max_ns = 300
//!
//!     [limits]
//!     bandwidth_share = 0.5
//!     exclude = ["leaf-0-0--spine-1"]
//!
//!     [[request]]
//!     name = "heartbeat"
//!     sender = "h1"
//!     receivers = ["h2", "h3", "h4"]
//!     size_max_bytes = 1472
//!     period_min_us = 100
//! "#)?;
//! assert_eq!(file.requests.len(), 1);
//! # Ok::<(), fide_planner::file::FileError>(())
//! ```

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::limits::Limits;
use crate::odds::Rates;
use crate::request::Request;
use crate::topology::{
    Cable, CableKind, CableSpec, FatTree, LeafSpine, Node, NodeId, NodeKind, Topology, TopologyError,
};

/// Largest file.
pub const FILE_MAX_BYTES: usize = 64 << 20;

/// What a file says.
#[derive(Clone, Debug)]
pub struct File {
    pub topology: Topology,
    /// What made the topology, or the part of it that is not written down.
    pub generator: Option<Generator>,
    pub limits: Limits,
    pub requests: Vec<Request>,
    pub rates: Rates,
}

/// A regular topology and its sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum Generator {
    FatTree(FatTree),
    LeafSpine(LeafSpine),
}

/// Why a file does not say it.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum FileError {
    #[error("{0}")]
    Toml(String),
    #[error("the file has {0} bytes; at most {FILE_MAX_BYTES} are read")]
    TooLong(usize),
    #[error("[topology]: generator {name:?} is none of \"fat_tree\", \"leaf_spine\"")]
    Generator { name: String },
    #[error("[topology]: generator {generator:?} needs {what}")]
    Missing { generator: String, what: &'static str },
    #[error("[topology]: {what} says nothing to generator {generator:?}")]
    Superfluous { generator: String, what: &'static str },
    #[error("there are no hosts: give a generator, or [[host]], [[switch]] and [[cable]]")]
    Empty,
    #[error("cable {number}: there is no node {name:?}; write a [[host]] or [[switch]] of that name")]
    UnknownNode { number: usize, name: String },
    #[error("two requests are called {0:?}")]
    RequestTwice(String),
    #[error("request {0:?}: give period_min_us or period_min_ns, one of them")]
    Period(String),
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Raw {
    topology: RawTopology,
    cables: CableSpec,
    limits: Limits,
    rates: Rates,
    host: Vec<RawHost>,
    switch: Vec<RawSwitch>,
    cable: Vec<RawCable>,
    request: Vec<RawRequest>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct RawTopology {
    generator: Option<String>,
    k: Option<u64>,
    homing: Option<u64>,
    groups: Option<u64>,
    spines: Option<u64>,
    hosts: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawHost {
    name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSwitch {
    name: String,
    #[serde(default)]
    tier: Option<u8>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCable {
    a: String,
    b: String,
    a_port: Option<String>,
    b_port: Option<String>,
    bandwidth_bps: Option<u64>,
    queue_bytes: Option<u64>,
    latency_min_ns: Option<u64>,
    jitter_max_ns: Option<u64>,
    #[serde(default)]
    reserved_bps: u64,
    #[serde(default)]
    reserved_burst_bytes: u64,
    kind: Option<CableKind>,
    failure_per_year: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRequest {
    name: String,
    sender: String,
    receivers: Vec<String>,
    size_max_bytes: u64,
    period_min_us: Option<u64>,
    period_min_ns: Option<u64>,
    #[serde(default)]
    priority: u8,
    redundancy: Option<u8>,
    latency_max_ns: Option<u64>,
}

/// Reads a file.
///
/// # Errors
/// [`FileError`], with line and column where it is not TOML or a key is unknown.
pub fn parse(text: &str) -> Result<File, FileError> {
    if text.len() > FILE_MAX_BYTES {
        return Err(FileError::TooLong(text.len()));
    }
    let raw: Raw = toml::from_str(text).map_err(|error| FileError::Toml(error.to_string().trim_end().to_owned()))?;
    let generator = raw.topology.generator.as_ref().map(|name| generator(name, &raw.topology)).transpose()?;
    let (mut nodes, mut cables) = match &generator {
        Some(generator) => {
            let generated = match generator {
                Generator::FatTree(of) => of.build(&raw.cables)?,
                Generator::LeafSpine(of) => of.build(&raw.cables)?,
            };
            (generated.nodes().to_vec(), generated.cables().to_vec())
        }
        None => (Vec::new(), Vec::new()),
    };
    nodes.extend(raw.host.into_iter().map(|host| Node { name: host.name, kind: NodeKind::Host, tier: 0 }));
    // Tiers that are not given follow from the cables.
    let mut without_tier: Vec<usize> = Vec::new();
    for switch in raw.switch {
        if switch.tier.is_none() {
            without_tier.push(nodes.len());
        }
        nodes.push(Node { name: switch.name, kind: NodeKind::Switch, tier: switch.tier.unwrap_or(u8::MAX) });
    }
    add_cables(raw.cable, &raw.cables, &nodes, &mut cables)?;
    fill_tiers(&mut nodes, &cables, &without_tier);
    if !nodes.iter().any(|node| node.kind == NodeKind::Host) {
        return Err(FileError::Empty);
    }
    let mut requests: Vec<Request> = Vec::new();
    let mut names = std::collections::HashSet::new();
    for request in raw.request {
        if !names.insert(request.name.clone()) {
            return Err(FileError::RequestTwice(request.name));
        }
        let period_min_ns = match (request.period_min_us, request.period_min_ns) {
            (Some(us), None) => us.saturating_mul(1000),
            (None, Some(ns)) => ns,
            _ => return Err(FileError::Period(request.name)),
        };
        requests.push(Request {
            name: request.name,
            sender: request.sender,
            receivers: request.receivers,
            size_max_bytes: request.size_max_bytes,
            period_min_ns,
            priority: request.priority,
            redundancy: request.redundancy.unwrap_or(2),
            latency_max_ns: request.latency_max_ns,
        });
    }
    let topology = Topology::new(nodes, cables)?;
    Ok(File { topology, generator, limits: raw.limits, requests, rates: raw.rates })
}

fn generator(name: &str, raw: &RawTopology) -> Result<Generator, FileError> {
    let generator = || name.to_owned();
    let need = |value: Option<u64>, what| value.ok_or_else(|| FileError::Missing { generator: generator(), what });
    let none = |value: Option<u64>, what| match value {
        Some(_) => Err(FileError::Superfluous { generator: generator(), what }),
        None => Ok(()),
    };
    match name {
        "fat_tree" => {
            none(raw.groups, "groups")?;
            none(raw.spines, "spines")?;
            none(raw.hosts, "hosts")?;
            Ok(Generator::FatTree(FatTree { k: need(raw.k, "k")?, homing: raw.homing.unwrap_or(2) }))
        }
        "leaf_spine" => {
            none(raw.k, "k")?;
            let groups = need(raw.groups, "groups")?;
            let spines = need(raw.spines, "spines")?;
            let hosts = need(raw.hosts, "hosts")?;
            Ok(Generator::LeafSpine(LeafSpine { groups, homing: raw.homing.unwrap_or(2), spines, hosts }))
        }
        _ => Err(FileError::Generator { name: name.chars().take(64).collect() }),
    }
}

fn add_cables(raw: Vec<RawCable>, spec: &CableSpec, nodes: &[Node], cables: &mut Vec<Cable>) -> Result<(), FileError> {
    let by_name: HashMap<&str, u32> = nodes.iter().map(|node| node.name.as_str()).zip(0..).collect();
    let mut free_port: HashMap<u32, u32> = HashMap::new();
    for cable in cables.iter() {
        for end in cable.ends {
            *free_port.entry(end.0).or_insert(0) += 1;
        }
    }
    for (number, cable) in (1..).zip(raw) {
        let find = |name: &str| {
            let name_of = || name.chars().take(64).collect();
            by_name.get(name).copied().ok_or_else(|| FileError::UnknownNode { number, name: name_of() })
        };
        let (a, b) = (find(&cable.a)?, find(&cable.b)?);
        let mut port = |node: u32, given: Option<String>| {
            let count = free_port.entry(node).or_insert(0);
            let port = given.unwrap_or_else(|| format!("p{count}"));
            *count += 1;
            port
        };
        let ports = [port(a, cable.a_port), port(b, cable.b_port)];
        let host = [a, b].iter().any(|node| nodes[*node as usize].kind == NodeKind::Host);
        let (latency, jitter) = if host {
            (spec.host_latency_min_ns, spec.host_jitter_max_ns)
        } else {
            (spec.latency_min_ns, spec.jitter_max_ns)
        };
        cables.push(Cable {
            ends: [NodeId(a), NodeId(b)],
            ports,
            bandwidth_bps: cable.bandwidth_bps.unwrap_or(spec.bandwidth_bps),
            queue_bytes: cable.queue_bytes.unwrap_or(spec.queue_bytes),
            latency_min_ns: cable.latency_min_ns.unwrap_or(latency),
            jitter_max_ns: cable.jitter_max_ns.unwrap_or(jitter),
            reserved_bps: cable.reserved_bps,
            reserved_burst_bytes: cable.reserved_burst_bytes,
            kind: cable.kind,
            failure_per_year: cable.failure_per_year,
        });
    }
    Ok(())
}

/// The tier of a switch is its distance from the nearest host; one beyond all others if no host is near.
fn fill_tiers(nodes: &mut [Node], cables: &[Cable], without_tier: &[usize]) {
    let mut neighbours: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    for cable in cables {
        let [a, b] = cable.ends.map(NodeId::at);
        neighbours[a].push(b);
        neighbours[b].push(a);
    }
    let mut layer: Vec<usize> = (0..nodes.len()).filter(|node| nodes[*node].kind == NodeKind::Host).collect();
    let mut distance = vec![u8::MAX; nodes.len()];
    layer.iter().for_each(|host| distance[*host] = 0);
    let mut depth = 0_u8;
    while !layer.is_empty() {
        depth = depth.saturating_add(1);
        let mut next = Vec::new();
        for node in layer {
            for neighbour in &neighbours[node] {
                if distance[*neighbour] == u8::MAX {
                    distance[*neighbour] = depth;
                    next.push(*neighbour);
                }
            }
        }
        layer = next;
    }
    for node in without_tier {
        nodes[*node].tier = if distance[*node] == u8::MAX { 1 } else { distance[*node] };
    }
}
