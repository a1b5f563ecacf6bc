// SPDX-License-Identifier: Apache-2.0
//! Regular topologies of any size.

use serde::{Deserialize, Serialize};

use super::{Cable, Node, NodeId, NodeKind, Topology, TopologyError};

/// Largest k of a fat tree.
const FAT_TREE_K_MAX: u64 = 64;
/// Most switches that a host is attached to.
const HOMING_MAX: u64 = 3;

/// What every cable of a generated topology is like.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CableSpec {
    pub bandwidth_bps: u64,
    pub queue_bytes: u64,
    /// Between switches.
    pub latency_min_ns: u64,
    pub jitter_max_ns: u64,
    /// Between a host and its switch, with the host's own part.
    pub host_latency_min_ns: u64,
    pub host_jitter_max_ns: u64,
}

impl Default for CableSpec {
    /// 10 Gbit/s; a switch takes half a microsecond within 50 ns; the host's part is half of the 655 ns of
    /// jitter, and of the 4.9 us less one switch, that X-Lane Table 2 measured from host to host.
    fn default() -> Self {
        Self {
            bandwidth_bps: 10_000_000_000,
            queue_bytes: 128 * 1024,
            latency_min_ns: 500,
            jitter_max_ns: 50,
            host_latency_min_ns: 2_200,
            host_jitter_max_ns: 300,
        }
    }
}

/// The multi-rooted fat tree of Al-Fares et al. that FiDe §6.5 assumes: k pods of k/2 edge and k/2
/// aggregation switches, (k/2)^2 cores, (k^3)/4 hosts.
///
/// There a host hangs on one edge switch, so that no two trees to it are disjoint. With `homing` 2 (3) its
/// first, second (and third) cable go to neighbouring edge switches of its pod instead, which then have as
/// many more host ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct FatTree {
    /// Ports of a switch, even.
    pub k: u64,
    /// Edge switches of each host.
    pub homing: u64,
}

/// Leaves in groups of `homing`, each connected to every spine; hosts connected to every leaf of their group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct LeafSpine {
    /// Groups of leaves.
    pub groups: u64,
    /// Leaves of a group, and cables of a host.
    pub homing: u64,
    pub spines: u64,
    /// Hosts of each group.
    pub hosts: u64,
}

struct Builder<'a> {
    nodes: Vec<Node>,
    cables: Vec<Cable>,
    spec: &'a CableSpec,
}

impl<'a> Builder<'a> {
    fn new(spec: &'a CableSpec) -> Self {
        Self { nodes: Vec::new(), cables: Vec::new(), spec }
    }

    fn node(&mut self, name: String, tier: u8) -> NodeId {
        let kind = if tier == 0 { NodeKind::Host } else { NodeKind::Switch };
        self.nodes.push(Node { name, kind, tier });
        NodeId(u32::try_from(self.nodes.len() - 1).expect("sizes are checked before"))
    }

    /// Ports are called after the neighbour, those of a host p0, p1, ... in the order of its cables.
    fn cable(&mut self, low: NodeId, high: NodeId, number: u64) {
        let host = self.nodes[low.at()].kind == NodeKind::Host;
        let low_port = if host { format!("p{number}") } else { self.nodes[high.at()].name.clone() };
        let (latency_min_ns, jitter_max_ns) = if host {
            (self.spec.host_latency_min_ns, self.spec.host_jitter_max_ns)
        } else {
            (self.spec.latency_min_ns, self.spec.jitter_max_ns)
        };
        self.cables.push(Cable {
            ends: [low, high],
            ports: [low_port, self.nodes[low.at()].name.clone()],
            bandwidth_bps: self.spec.bandwidth_bps,
            queue_bytes: self.spec.queue_bytes,
            latency_min_ns,
            jitter_max_ns,
            reserved_bps: 0,
            reserved_burst_bytes: 0,
            kind: None,
            failure_per_year: None,
        });
    }
}

fn within(
    generator: &'static str,
    what: &'static str,
    value: u64,
    right: bool,
    range: &'static str,
) -> Result<(), TopologyError> {
    if right { Ok(()) } else { Err(TopologyError::Generator { generator, what, value, range }) }
}

impl FatTree {
    /// Builds it. Hosts `h-POD-EDGE-NUMBER`, switches `edge-POD-N`, `agg-POD-N`, `core-N-M` (M-th neighbour of the N-th
    /// aggregation switch of every pod).
    ///
    /// # Errors
    /// k that is odd, or not 2 to 64; homing that is not 1 to 3 or does not divide k/2.
    pub fn build(&self, spec: &CableSpec) -> Result<Topology, TopologyError> {
        let Self { k, homing } = *self;
        within("fat_tree", "k", k, k.is_multiple_of(2) && (2..=FAT_TREE_K_MAX).contains(&k), "even, 2 to 64")?;
        let half = k / 2;
        let divides = (1..=HOMING_MAX).contains(&homing) && half.is_multiple_of(homing);
        within("fat_tree", "homing", homing, divides, "1 to 3, and a divisor of k/2")?;
        let mut b = Builder::new(spec);
        let cores: Vec<Vec<NodeId>> =
            (0..half).map(|n| (0..half).map(|m| b.node(format!("core-{n}-{m}"), 3)).collect()).collect();
        for pod in 0..k {
            let aggs: Vec<_> = (0..half).map(|n| b.node(format!("agg-{pod}-{n}"), 2)).collect();
            let edges: Vec<_> = (0..half).map(|n| b.node(format!("edge-{pod}-{n}"), 1)).collect();
            for (agg, cores) in aggs.iter().zip(&cores) {
                for core in cores {
                    b.cable(*agg, *core, 0);
                }
            }
            for edge in &edges {
                for agg in &aggs {
                    b.cable(*edge, *agg, 0);
                }
            }
            for edge in 0..half {
                for number in 0..half {
                    let host = b.node(format!("h-{pod}-{edge}-{number}"), 0);
                    let first = edge - edge % homing;
                    for home in 0..homing {
                        b.cable(host, edges[usize::try_from(first + home).expect("small")], home);
                    }
                }
            }
        }
        Topology::new(b.nodes, b.cables)
    }
}

impl LeafSpine {
    /// Builds it. Hosts `h1`, `h2`, ..., switches `leaf-GROUP-N` and `spine-N`. Without spines there may be one group.
    ///
    /// # Errors
    /// Sizes that make no network, or one beyond [`super::MAX_NODES`].
    pub fn build(&self, spec: &CableSpec) -> Result<Topology, TopologyError> {
        let Self { groups, homing, spines, hosts } = *self;
        within("leaf_spine", "groups", groups, (1..=1024).contains(&groups), "1 to 1024")?;
        within("leaf_spine", "homing", homing, (1..=HOMING_MAX).contains(&homing), "1 to 3")?;
        within("leaf_spine", "spines", spines, spines <= 256 && (spines > 0 || groups == 1), "1 to 256")?;
        within("leaf_spine", "hosts", hosts, (1..=64).contains(&hosts), "1 to 64 in each group")?;
        let mut b = Builder::new(spec);
        let spines: Vec<_> = (0..spines).map(|n| b.node(format!("spine-{n}"), 2)).collect();
        for group in 0..groups {
            let leaves: Vec<_> = (0..homing).map(|n| b.node(format!("leaf-{group}-{n}"), 1)).collect();
            for leaf in &leaves {
                for spine in &spines {
                    b.cable(*leaf, *spine, 0);
                }
            }
            for number in 0..hosts {
                let host = b.node(format!("h{}", group * hosts + number + 1), 0);
                for (home, leaf) in (0..).zip(&leaves) {
                    b.cable(host, *leaf, home);
                }
            }
        }
        Topology::new(b.nodes, b.cables)
    }
}
