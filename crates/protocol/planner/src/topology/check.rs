// SPDX-License-Identifier: Apache-2.0
//! What a topology must not be.

use std::collections::{HashMap, HashSet};

use super::{Cable, MAX_CABLES, MAX_NODES, Node, NodeId};

/// Longest name of a node or port.
const NAME_MAX_BYTES: usize = 63;
/// Slowest and fastest cable, bits per second.
pub const BANDWIDTH_BPS: std::ops::RangeInclusive<u64> = 1_000..=10_000_000_000_000;
/// Longest latency or jitter of one cable: a second, 200,000 km.
const LATENCY_MAX_NS: u64 = 1_000_000_000;
/// Largest queue.
const QUEUE_MAX_BYTES: u64 = 1 << 40;

/// Why something is not a topology.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum TopologyError {
    #[error("{count} {what}: at most {max} are possible")]
    TooMany { what: &'static str, count: usize, max: usize },
    #[error("name {name:?} of a {what}: 1 to {NAME_MAX_BYTES} of a-z, A-Z, 0-9, '.', '_' and '-', without \"--\"")]
    Name { what: &'static str, name: String },
    #[error("two nodes are called {name:?}: give each a name of its own")]
    Twice { name: String },
    #[error("a cable ends at node number {node}, of {nodes}")]
    NoSuchNode { node: u32, nodes: usize },
    #[error("cable {cable}: both ends are {node:?}; a cable joins two different nodes")]
    Loop { cable: usize, node: String },
    #[error("cable {a}--{b}: port {port:?} of {node} has a cable already; parallel cables have ports of their own")]
    PortTwice { a: String, b: String, node: String, port: String },
    #[error("cable {a}--{b}: {what} is {value}; it must be {range}")]
    Value { a: String, b: String, what: &'static str, value: String, range: String },
    #[error("{generator}: {what} is {value}; it must be {range}")]
    Generator { generator: &'static str, what: &'static str, value: u64, range: &'static str },
}

/// Whether a node or a port may be called so.
#[must_use]
pub fn name_fits(name: &str) -> bool {
    let right = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    !name.is_empty() && name.len() <= NAME_MAX_BYTES && name.bytes().all(right) && !name.contains("--")
}

fn named(what: &'static str, name: &str) -> Result<(), TopologyError> {
    if !name_fits(name) {
        return Err(TopologyError::Name { what, name: name.chars().take(NAME_MAX_BYTES + 1).collect() });
    }
    Ok(())
}

pub(super) fn check(nodes: &[Node], cables: &[Cable]) -> Result<HashMap<String, NodeId>, TopologyError> {
    if nodes.len() > MAX_NODES {
        return Err(TopologyError::TooMany { what: "nodes", count: nodes.len(), max: MAX_NODES });
    }
    if cables.len() > MAX_CABLES {
        return Err(TopologyError::TooMany { what: "cables", count: cables.len(), max: MAX_CABLES });
    }
    let mut by_name = HashMap::with_capacity(nodes.len());
    for (id, node) in (0..).zip(nodes) {
        named("node", &node.name)?;
        if by_name.insert(node.name.clone(), NodeId(id)).is_some() {
            return Err(TopologyError::Twice { name: node.name.clone() });
        }
    }
    let mut ports: HashSet<(NodeId, &str)> = HashSet::with_capacity(cables.len() * 2);
    for (number, cable) in cables.iter().enumerate() {
        for end in cable.ends {
            if end.at() >= nodes.len() {
                return Err(TopologyError::NoSuchNode { node: end.0, nodes: nodes.len() });
            }
        }
        let [a, b] = cable.ends.map(|end| nodes[end.at()].name.clone());
        if cable.ends[0] == cable.ends[1] {
            return Err(TopologyError::Loop { cable: number + 1, node: a });
        }
        for (end, port) in cable.ends.iter().zip(&cable.ports) {
            named("port", port)?;
            if !ports.insert((*end, port)) {
                let node = nodes[end.at()].name.clone();
                return Err(TopologyError::PortTwice { a, b, node, port: port.clone() });
            }
        }
        let wrong = |what, value: String, range: String| TopologyError::Value {
            a: a.clone(),
            b: b.clone(),
            what,
            value,
            range,
        };
        if !BANDWIDTH_BPS.contains(&cable.bandwidth_bps) {
            let range = format!("{} to {}", BANDWIDTH_BPS.start(), BANDWIDTH_BPS.end());
            return Err(wrong("bandwidth_bps", cable.bandwidth_bps.to_string(), range));
        }
        if !(1..=QUEUE_MAX_BYTES).contains(&cable.queue_bytes) {
            return Err(wrong("queue_bytes", cable.queue_bytes.to_string(), format!("1 to {QUEUE_MAX_BYTES}")));
        }
        for (what, value) in [("latency_min_ns", cable.latency_min_ns), ("jitter_max_ns", cable.jitter_max_ns)] {
            if value > LATENCY_MAX_NS {
                return Err(wrong(what, value.to_string(), format!("at most {LATENCY_MAX_NS}")));
            }
        }
        if cable.reserved_bps >= cable.bandwidth_bps {
            let range = format!("below the bandwidth, {}", cable.bandwidth_bps);
            return Err(wrong("reserved_bps", cable.reserved_bps.to_string(), range));
        }
        if cable.reserved_burst_bytes > QUEUE_MAX_BYTES {
            let range = format!("at most {QUEUE_MAX_BYTES}");
            return Err(wrong("reserved_burst_bytes", cable.reserved_burst_bytes.to_string(), range));
        }
        if let Some(p) = cable.failure_per_year
            && !(0.0..=1.0).contains(&p)
        {
            return Err(wrong("failure_per_year", p.to_string(), "a probability, 0 to 1".to_owned()));
        }
    }
    Ok(by_name)
}
