// SPDX-License-Identifier: Apache-2.0
//! Hosts and switches made of network namespaces, veth pairs and bridges.

use crate::load::{Flood, FloodSpec};
use crate::names::Owner;
use crate::node::{Cluster, FIRST_HOST, Host, Node, address, mac, ready_to_build};
use crate::port::{await_forwarding, deaf_to_igmp, drop_from_host, queue_script};
use crate::reaper::Reaper;
use crate::sys::{self, LinkControl, PORT_DISABLED, PORT_FORWARDING};
use crate::tools::batch;
use crate::{Error, Result};
use std::fmt::Write;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

/// Most hosts of one testbed: the detector's own MAX_HOSTS.
pub const MAX_TESTBED_HOSTS: usize = 64;
/// Most planes; each has addresses set aside for it.
const MAX_PLANES: usize = 2;
/// Link indices of p0, and of h1 minus 1. They differ on purpose: if a link and its peer (in another
/// namespace) have the same index, the kernel takes the link for one without a peer, and reports its carrier
/// up to a second late.
const HOST_LINK_INDEX: usize = 10;
const PORT_LINK_INDEX: usize = 100;
/// UDP port of the best-effort traffic of [`Testbed::flood`].
pub const BULK_PORT: u16 = 9;

/// One directed multicast tree: the hosts that receive `group` on `plane`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// Plane, from 0.
    pub plane: usize,
    /// Multicast group, e.g. 239.70.0.1.
    pub group: Ipv4Addr,
    /// Receiving hosts, from 1.
    pub receivers: Vec<usize>,
}

/// What a switch does with multicast.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Multicast {
    /// It sends it to every port except the one that it came from.
    Flood,
    /// It sends it only to the receivers of these trees (static entries per port and group).
    Trees(Vec<Tree>),
}

/// What to build.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Hosts, 1..=64; named h1, h2, ...
    pub hosts: usize,
    /// Planes (switches), 1 or 2.
    pub planes: usize,
    /// Rate of every switch port towards its host, in Mbit/s, with a class of strict priority for DSCP CS7
    /// and EF. `None`: as fast as the machine, without a queue.
    pub rate_mbit: Option<u32>,
    /// Multicast forwarding.
    pub multicast: Multicast,
    /// Whether links use offloads (checksums, TSO, GSO, GRO) and so carry several packets as one, as network
    /// cards do. Without them, a link carries exactly the packets that a wire would carry, which relays and
    /// XDP need.
    pub offloads: bool,
}

impl Default for Spec {
    fn default() -> Self {
        Spec { hosts: 3, planes: 2, rate_mbit: None, multicast: Multicast::Flood, offloads: false }
    }
}

impl Spec {
    /// `hosts` hosts on two planes, otherwise as [`Spec::default`].
    pub fn hosts(hosts: usize) -> Self {
        Spec { hosts, ..Spec::default() }
    }

    fn check(&self) -> Result<()> {
        if !(1..=MAX_TESTBED_HOSTS).contains(&self.hosts) {
            return Err(Error::Spec(format!("{} hosts; 1 to {MAX_TESTBED_HOSTS} are possible", self.hosts)));
        }
        if !(1..=MAX_PLANES).contains(&self.planes) {
            return Err(Error::Spec(format!("{} planes; 1 or {MAX_PLANES} are possible", self.planes)));
        }
        if self.rate_mbit == Some(0) {
            return Err(Error::Spec("a rate of 0 Mbit/s lets nothing through; give 1 or more, or none".into()));
        }
        if let Multicast::Trees(trees) = &self.multicast {
            for t in trees {
                let hosts_fit = t.receivers.iter().all(|h| (FIRST_HOST..=self.hosts).contains(h));
                if t.plane >= self.planes || !hosts_fit || !t.group.is_multicast() {
                    return Err(Error::Spec(format!(
                        "tree {t:?} does not fit {} hosts and {} planes (planes count from 0, hosts from 1, the group \
                         is within 224.0.0.0/4)",
                        self.hosts, self.planes
                    )));
                }
            }
        }
        Ok(())
    }
}

/// One plane's switch: a namespace with a bridge `br0`, whose ports carry the hosts' names.
#[derive(Debug)]
struct Switch {
    namespace: String,
    control: LinkControl,
    /// Link index of host `i + 1`'s port.
    ports: Vec<u32>,
}

/// A cluster on this machine, removed when dropped.
#[derive(Debug)]
pub struct Testbed {
    spec: Spec,
    hosts: Vec<Host>,
    switches: Vec<Switch>,
    scratch: PathBuf,
    reaper: Reaper,
}

impl Testbed {
    /// Removes what dead runs left behind (and reports it on stderr), then builds.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without root; [`Error::Spec`]; [`Error::Tool`] with what iproute2 said. What was built so
    /// far is removed.
    pub fn build(spec: Spec) -> Result<Testbed> {
        spec.check()?;
        let _guard = ready_to_build()?;
        let owner = Owner::new()?;
        let host_ns: Vec<_> = (FIRST_HOST..=spec.hosts).map(|h| owner.namespace(&format!("h{h}"))).collect();
        let switch_ns: Vec<_> = (0..spec.planes).map(|p| owner.namespace(&format!("s{p}"))).collect();
        let scratch = owner.scratch();
        std::fs::create_dir_all(&scratch).map_err(|e| Error::io(format!("making {}", scratch.display()), e))?;
        let all: Vec<_> = host_ns.iter().chain(&switch_ns).cloned().collect();
        let mut reaper = Reaper::start(&all, &scratch)?;
        match wire(&spec, &host_ns, &switch_ns) {
            Ok((hosts, switches)) => Ok(Testbed { spec, hosts, switches, scratch, reaper }),
            Err(e) => {
                reaper.finish();
                Err(e)
            }
        }
    }

    /// Host by number, from 1.
    ///
    /// # Panics
    /// If there is no such host.
    pub fn host(&self, host: usize) -> &Host {
        assert!(
            (FIRST_HOST..=self.hosts.len()).contains(&host),
            "no host {host}: this testbed has hosts {FIRST_HOST} to {}",
            self.hosts.len()
        );
        &self.hosts[host - FIRST_HOST]
    }

    /// All hosts, in order.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// Number of planes.
    pub fn planes(&self) -> usize {
        self.spec.planes
    }

    /// What was built.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// A directory for configuration, sockets and logs, removed with the testbed unless [`Testbed::keep_scratch`].
    pub fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// Leaves the scratch directory in place when the testbed is removed (until a sweep after this process's
    /// end).
    pub fn keep_scratch(&mut self) {
        self.reaper.keep_scratch();
    }

    /// Cuts a host off a plane at the switch: its port stops forwarding both ways, and the host sees no
    /// carrier change. Returns the CLOCK_MONOTONIC times in ns just before and after; at the second time, the
    /// cut is in force.
    pub fn cut(&self, host: usize, plane: usize) -> Result<(u64, u64)> {
        self.set_port(host, plane, PORT_DISABLED)
    }

    /// Undoes [`Testbed::cut`]. Returns the same times.
    pub fn restore(&self, host: usize, plane: usize) -> Result<(u64, u64)> {
        self.set_port(host, plane, PORT_FORWARDING)
    }

    /// Cuts a host off every plane. Returns times as [`Testbed::cut`] does, before the first and after the
    /// last.
    pub fn isolate(&self, host: usize) -> Result<(u64, u64)> {
        self.on_planes(|p| self.cut(host, p))
    }

    /// Undoes [`Testbed::isolate`].
    pub fn rejoin(&self, host: usize) -> Result<(u64, u64)> {
        self.on_planes(|p| self.restore(host, p))
    }

    fn on_planes(&self, f: impl Fn(usize) -> Result<(u64, u64)>) -> Result<(u64, u64)> {
        let mut span = f(0)?;
        for plane in 1..self.planes() {
            span.1 = f(plane)?.1;
        }
        Ok(span)
    }

    fn set_port(&self, host: usize, plane: usize, state: u8) -> Result<(u64, u64)> {
        let index = self.host(host).index() - FIRST_HOST;
        let switch = self.switch(plane)?;
        let before = fide_sys::clock::mono_ns();
        switch.control.set_port_state(switch.ports[index], state)?;
        Ok((before, fide_sys::clock::mono_ns()))
    }

    /// Pulls the plug: the link goes down and the host loses its carrier.
    pub fn unplug(&self, host: usize, plane: usize) -> Result<()> {
        self.set_link(host, plane, "down")
    }

    /// Undoes [`Testbed::unplug`].
    pub fn plug(&self, host: usize, plane: usize) -> Result<()> {
        self.set_link(host, plane, "up")
    }

    /// Makes these hosts deaf to each other on every plane; they and all other hosts still hear each other.
    ///
    /// # Errors
    /// [`Error::Tool`] with what iproute2 said.
    pub fn separate(&self, hosts: &[usize]) -> Result<()> {
        self.set_isolated(hosts, "on")
    }

    /// Undoes [`Testbed::separate`].
    ///
    /// # Errors
    /// [`Error::Tool`] with what iproute2 said.
    pub fn reunite(&self, hosts: &[usize]) -> Result<()> {
        self.set_isolated(hosts, "off")
    }

    /// Makes `by` deaf to `of` on every plane; `of` still hears `by`. Unlike with [`Testbed::separate`],
    /// pairs are independent of each other.
    ///
    /// # Errors
    /// [`Error::Tool`] with what iproute2 said.
    pub fn deafen(&self, by: usize, of: usize) -> Result<()> {
        for switch in &self.switches {
            // Most often the qdisc is there already, and must not be replaced: its filters would be removed
            // with it.
            let _ = batch("tc", &["-n", &switch.namespace, "qdisc", "add", "dev", self.host(by).name(), "clsact"], "");
        }
        self.filter(by, of, |port| drop_from_host(port, of))
    }

    /// Undoes [`Testbed::deafen`].
    ///
    /// # Errors
    /// [`Error::Tool`] with what iproute2 said.
    pub fn undeafen(&self, by: usize, of: usize) -> Result<()> {
        self.filter(by, of, |port| format!("filter del dev {port} egress pref {of}\n"))
    }

    fn filter(&self, by: usize, of: usize, lines: impl Fn(&str) -> String) -> Result<()> {
        // Checks that both are hosts.
        let (port, _) = (self.host(by).name(), self.host(of));
        for switch in &self.switches {
            batch("tc", &["-n", &switch.namespace, "-batch", "-"], &lines(port))?;
        }
        Ok(())
    }

    fn set_isolated(&self, hosts: &[usize], isolated: &str) -> Result<()> {
        for switch in &self.switches {
            let lines: String = hosts
                .iter()
                .map(|host| format!("link set dev {} isolated {isolated}\n", self.host(*host).name()))
                .collect();
            batch("bridge", &["-n", &switch.namespace, "-batch", "-"], &lines)?;
        }
        Ok(())
    }

    fn set_link(&self, host: usize, plane: usize, state: &str) -> Result<()> {
        let (port, switch) = (self.host(host).name(), self.switch(plane)?);
        let args = ["-n", &switch.namespace, "link", "set", port, state];
        batch("ip", &args, "")
    }

    fn switch(&self, plane: usize) -> Result<&Switch> {
        self.switches
            .get(plane)
            .ok_or_else(|| Error::Spec(format!("no plane {plane}: this testbed has planes 0 to {}", self.planes() - 1)))
    }

    /// Starts best-effort UDP traffic from host to host over one plane; it stops by itself at its bounds.
    pub fn flood(&self, spec: FloodSpec) -> Result<Flood> {
        self.switch(spec.plane)?;
        Flood::start(self.host(spec.from), self.host(spec.to), spec)
    }

    /// Pids of the processes on the hosts.
    pub fn processes(&self) -> Result<Vec<u32>> {
        let mut pids = Vec::new();
        for host in &self.hosts {
            pids.extend(crate::names::pids_in(host.namespace())?);
        }
        Ok(pids)
    }
}

impl Cluster for Testbed {
    fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    fn scratch(&self) -> &Path {
        &self.scratch
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        self.reaper.finish();
    }
}

/// Makes namespaces and links. Returns the hosts and switches.
fn wire(spec: &Spec, host_ns: &[String], switch_ns: &[String]) -> Result<(Vec<Host>, Vec<Switch>)> {
    let mut script = String::new();
    for ns in host_ns.iter().chain(switch_ns) {
        let _ = writeln!(script, "netns add {ns}");
    }
    for (plane, switch) in switch_ns.iter().enumerate() {
        for (i, ns) in host_ns.iter().enumerate() {
            let host = i + FIRST_HOST;
            let _ = writeln!(
                script,
                "link add name p{plane} index {} netns {ns} address {} type veth peer name h{host} index {} netns {switch}",
                HOST_LINK_INDEX + plane,
                mac(host, plane),
                PORT_LINK_INDEX + host
            );
        }
    }
    batch("ip", &["-batch", "-"], &script)?;

    let mut hosts = Vec::new();
    for (i, ns) in host_ns.iter().enumerate() {
        let index = i + FIRST_HOST;
        batch("ip", &["-n", ns, "-batch", "-"], &host_script(spec, index))?;
        let node = Node::open(format!("h{index}"), ns.clone())?;
        if !spec.offloads {
            node.run_in(|| (0..spec.planes).try_for_each(|p| sys::offloads_off(&format!("p{p}"))))??;
        }
        hosts.push(Host::new(node, index, spec.planes));
    }
    let mut switches = Vec::new();
    for (plane, ns) in switch_ns.iter().enumerate() {
        switches.push(build_switch(spec, plane, ns)?);
    }
    Ok((hosts, switches))
}

fn host_script(spec: &Spec, host: usize) -> String {
    let mut s = String::from("link set lo up\n");
    for plane in 0..spec.planes {
        let _ = writeln!(s, "link set p{plane} addrgenmode none");
        let _ = writeln!(s, "addr add {}/24 dev p{plane}", address(host, plane));
        let _ = writeln!(s, "link set p{plane} up");
        // No address resolution: after a cut it would decide when a host is heard again.
        for other in (FIRST_HOST..=spec.hosts).filter(|o| *o != host) {
            let (ip, mac) = (address(other, plane), mac(other, plane));
            let _ = writeln!(s, "neigh add {ip} lladdr {mac} dev p{plane} nud permanent");
        }
    }
    // For senders that name no link: they use the first plane.
    s.push_str("route add 224.0.0.0/4 dev p0\n");
    s
}

fn build_switch(spec: &Spec, plane: usize, ns: &str) -> Result<Switch> {
    let snooping = match spec.multicast {
        Multicast::Flood => "mcast_snooping 0",
        Multicast::Trees(_) => "mcast_snooping 1 mcast_query_response_interval 1",
    };
    let mut s = format!(
        "link set lo up\nlink add br0 type bridge stp_state 0 forward_delay 0 {snooping}\n\
         link set br0 addrgenmode none\nlink set br0 up\n"
    );
    for host in FIRST_HOST..=spec.hosts {
        let _ = writeln!(s, "link set h{host} addrgenmode none\nlink set h{host} master br0\nlink set h{host} up");
    }
    if spec.multicast != Multicast::Flood {
        // Entries count only while there is a querier, so the bridge is its own querier. It trusts itself as
        // one after the response interval (1 = a hundredth of a second) that is in force when it becomes one.
        s.push_str("link set br0 type bridge mcast_querier 1\n");
    }
    batch("ip", &["-n", ns, "-batch", "-"], &s)?;

    let mut forwarding = String::new();
    for host in FIRST_HOST..=spec.hosts {
        let _ = writeln!(forwarding, "fdb replace {} dev h{host} master static", mac(host, plane));
    }
    if let Multicast::Trees(trees) = &spec.multicast {
        let deaf: String = (FIRST_HOST..=spec.hosts).map(|h| deaf_to_igmp(&format!("h{h}"))).collect();
        batch("tc", &["-n", ns, "-batch", "-"], &deaf)?;
        for tree in trees.iter().filter(|t| t.plane == plane) {
            for host in &tree.receivers {
                let _ = writeln!(forwarding, "mdb add dev br0 port h{host} grp {} permanent", tree.group);
            }
        }
    }
    batch("bridge", &["-n", ns, "-batch", "-"], &forwarding)?;
    if let Some(rate) = spec.rate_mbit {
        let script: String = (FIRST_HOST..=spec.hosts).map(|h| queue_script(&format!("h{h}"), rate, 1)).collect();
        batch("tc", &["-n", ns, "-batch", "-"], &script)?;
    }
    await_forwarding(ns, spec.hosts)?;
    Node::open(format!("s{plane}"), ns.to_string())?.run_in(|| {
        let mut ports = Vec::new();
        for host in FIRST_HOST..=spec.hosts {
            let port = format!("h{host}");
            if !spec.offloads {
                sys::offloads_off(&port)?;
            }
            ports.push(sys::link_index(&port)?);
        }
        Ok(Switch { namespace: ns.to_string(), control: LinkControl::open()?, ports })
    })?
}

#[cfg(test)]
mod tests;
