// SPDX-License-Identifier: Apache-2.0
//! Builds namespaces, links and switches from a specification.

use super::spec::{CONTROLLER, End, FabricSpec, MANAGEMENT, SwitchKind};
use super::{Switch, ovs::Ovs};
use crate::Result;
use crate::names::Owner;
use crate::node::{FIRST_HOST, Host, Node, address, mac};
use crate::port::{await_forwarding, deaf_to_igmp, queue_script};
use crate::sys::{self, LinkControl};
use crate::tools::batch;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

/// First interface number: the ends of link n have the numbers 2n and 2n + 1 from here on. No two ends share
/// a number: if a link and its peer (in another namespace) have the same number, the kernel takes the link
/// for one without a peer, and reports its carrier up to a second late.
pub(super) const FIRST_LINK_INDEX: usize = 1000;
/// Interface number of `m0` at host n is this plus n; its peer's is 300 more.
const MANAGEMENT_INDEX: usize = 200;
/// Last byte of the controller's address; hosts end at 64.
const CONTROLLER_HOST: usize = 254;
/// A response interval of a hundredth of a second, in kernel ticks that may be just as long, and some margin.
const QUERIER_TRUST: Duration = Duration::from_millis(30);
/// CS7 and EF have a lane each.
const LANES: usize = 2;

pub(super) struct Wired {
    pub(super) hosts: Vec<Host>,
    pub(super) switches: Vec<Switch>,
    pub(super) controller: Option<Node>,
}

/// Names of all namespaces.
pub(super) fn namespaces(spec: &FabricSpec, owner: &Owner) -> Vec<String> {
    let hosts = (FIRST_HOST..=spec.hosts).map(|h| format!("h{h}"));
    let switches = spec.switches.iter().map(|s| s.name.clone());
    let apart = [MANAGEMENT, CONTROLLER].into_iter().filter(|_| spec.management).map(String::from);
    hosts.chain(switches).chain(apart).map(|n| owner.namespace(&n)).collect()
}

/// Interface number of an end of link `link`.
pub(super) fn link_index(link: usize, second: bool) -> u32 {
    (FIRST_LINK_INDEX + 2 * link + usize::from(second)) as u32
}

/// Builds everything. If it fails, the reaper removes what was made so far.
pub(super) fn wire(spec: &FabricSpec, owner: &Owner, scratch: &Path) -> Result<Wired> {
    let mut script = String::new();
    for ns in namespaces(spec, owner) {
        let _ = writeln!(script, "netns add {ns}");
    }
    for (i, link) in spec.links.iter().enumerate() {
        let end = |e: &End, second| {
            let address = e.node.strip_prefix('h').and_then(|h| h.parse().ok()).filter(|_| spec.is_host(&e.node));
            let plane = usize::from(e.port == "p1");
            let address = address.map_or(String::new(), |h: usize| format!(" address {}", mac(h, plane)));
            let (port, index, ns) = (&e.port, link_index(i, second), owner.namespace(&e.node));
            format!("name {port} index {index} netns {ns}{address}")
        };
        let _ = writeln!(script, "link add {} type veth peer {}", end(&link.a, false), end(&link.b, true));
    }
    if spec.management {
        for (node, number) in managed(spec) {
            let index = MANAGEMENT_INDEX + number;
            let (ns, bridge) = (owner.namespace(&node), owner.namespace(MANAGEMENT));
            let _ = writeln!(
                script,
                "link add name m0 index {index} netns {ns} type veth peer name {node} index {} netns {bridge}",
                index + 300
            );
        }
    }
    batch("ip", &["-batch", "-"], &script)?;

    let controller = spec.management.then(|| management(spec, owner)).transpose()?;
    let mut hosts = Vec::new();
    for index in FIRST_HOST..=spec.hosts {
        let node = Node::open(format!("h{index}"), owner.namespace(&format!("h{index}")))?;
        batch("ip", &["-n", node.namespace(), "-batch", "-"], &host_script(spec, index))?;
        finish_ports(spec, &node)?;
        hosts.push(Host::new(node, index, spec.planes(index)));
    }
    let mut switches = Vec::new();
    for s in &spec.switches {
        let node = Node::open(s.name.clone(), owner.namespace(&s.name))?;
        let ports = ports_of(spec, &s.name);
        let ovs = match s.kind {
            SwitchKind::Bridge => bridge(&node, &ports).map(|()| None)?,
            SwitchKind::Ovs => {
                batch("ip", &["-n", node.namespace(), "-batch", "-"], &ports_up(&ports))?;
                Some(Ovs::start(&node, &scratch.join(&s.name), &ports)?)
            }
        };
        finish_ports(spec, &node)?;
        let control = node.run_in(LinkControl::open)??;
        switches.push(Switch { node, kind: s.kind, control, ovs });
    }
    for switch in switches.iter().filter(|s| s.kind == SwitchKind::Bridge) {
        // Only now, because both ends of every link are up.
        await_forwarding(switch.node.namespace(), ports_of(spec, switch.name()).len())?;
    }
    // There is no way to see when the bridges trust themselves as queriers.
    std::thread::sleep(QUERIER_TRUST);
    Ok(Wired { hosts, switches, controller })
}

/// Names of a node's ports, in order of the links.
pub(super) fn ports_of(spec: &FabricSpec, node: &str) -> Vec<String> {
    let ends = spec.links.iter().flat_map(|l| [&l.a, &l.b]);
    ends.filter(|e| e.node == node).map(|e| e.port.clone()).collect()
}

fn managed(spec: &FabricSpec) -> Vec<(String, usize)> {
    let hosts = (FIRST_HOST..=spec.hosts).map(|h| (format!("h{h}"), h));
    hosts.chain([(CONTROLLER.into(), CONTROLLER_HOST)]).collect()
}

/// An ordinary bridge, which floods and learns: it has no loop.
fn management(spec: &FabricSpec, owner: &Owner) -> Result<Node> {
    let mut s = String::from(
        "link set lo up\nlink add br0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n\
         link set br0 addrgenmode none\nlink set br0 up\n",
    );
    let nodes = managed(spec);
    for (node, _) in &nodes {
        let _ = writeln!(s, "link set {node} addrgenmode none\nlink set {node} master br0\nlink set {node} up");
    }
    batch("ip", &["-n", &owner.namespace(MANAGEMENT), "-batch", "-"], &s)?;
    for (node, number) in &nodes {
        let ns = owner.namespace(node);
        let s = format!(
            "link set lo up\nlink set m0 addrgenmode none\naddr add 10.71.0.{number}/24 dev m0\nlink set m0 up\n"
        );
        batch("ip", &["-n", &ns, "-batch", "-"], &s)?;
        Node::open(node.clone(), ns)?.run_in(|| sys::offloads_off("m0"))??;
    }
    await_forwarding(&owner.namespace(MANAGEMENT), nodes.len())?;
    Node::open(CONTROLLER.into(), owner.namespace(CONTROLLER))
}

fn host_script(spec: &FabricSpec, host: usize) -> String {
    let mut s = String::from("link set lo up\n");
    for plane in 0..spec.planes(host) {
        let _ = writeln!(s, "link set p{plane} addrgenmode none");
        let _ = writeln!(s, "addr add {}/24 dev p{plane}", address(host, plane));
        let _ = writeln!(s, "link set p{plane} up");
        // No address resolution: its broadcasts end at the first switch.
        for other in (FIRST_HOST..=spec.hosts).filter(|o| *o != host) {
            let (ip, mac) = (address(other, plane), mac(other, plane));
            let _ = writeln!(s, "neigh add {ip} lladdr {mac} dev p{plane} nud permanent");
        }
    }
    // For senders that name no link: they use the first plane.
    s.push_str("route add 224.0.0.0/4 dev p0\n");
    s
}

fn ports_up(ports: &[String]) -> String {
    let mut s = String::from("link set lo up\n");
    for port in ports {
        let _ = writeln!(s, "link set {port} addrgenmode none\nlink set {port} up");
    }
    s
}

/// A bridge in a graph with loops: nothing is flooded or learned, so only installed entries forward.
///
/// The kernel uses static multicast entries only while snooping is on and a querier is known. So the bridge
/// is its own querier; without one, multicast would be flooded, which here means dropped. The bridge trusts
/// itself as a querier after the response interval (1 = a hundredth of a second) that is in force when it
/// becomes one. Queries of another bridge would change two things: ports would become router ports, which get
/// all multicast, and the bridge's trust in itself would start anew. Both are prevented: no port may become a
/// router port, and IGMP is dropped at ingress.
fn bridge(node: &Node, ports: &[String]) -> Result<()> {
    // Before the first port is up, because a neighbour sends queries at once.
    let deaf: String = ports.iter().map(|p| deaf_to_igmp(p)).collect();
    batch("tc", &["-n", node.namespace(), "-batch", "-"], &deaf)?;
    let mut s = String::from(
        "link set lo up\nlink add br0 type bridge stp_state 0 forward_delay 0 mcast_snooping 1 \
         mcast_query_response_interval 1\nlink set br0 addrgenmode none\nlink set br0 up\n",
    );
    for port in ports {
        let _ = writeln!(
            s,
            "link set {port} addrgenmode none\nlink set {port} master br0\n\
             link set {port} type bridge_slave flood off mcast_flood off bcast_flood off learning off mcast_router 0\n\
             link set {port} up"
        );
    }
    s.push_str("link set br0 type bridge mcast_querier 1\n");
    batch("ip", &["-n", node.namespace(), "-batch", "-"], &s)
}

/// Queues and offloads of a node's ports.
fn finish_ports(spec: &FabricSpec, node: &Node) -> Result<()> {
    let ports = ports_of(spec, node.name());
    if let Some(rate) = spec.rate_mbit {
        let script: String = ports.iter().map(|p| queue_script(p, rate, LANES)).collect();
        batch("tc", &["-n", node.namespace(), "-batch", "-"], &script)?;
    }
    node.run_in(|| ports.iter().try_for_each(|p| sys::offloads_off(p)))?
}
