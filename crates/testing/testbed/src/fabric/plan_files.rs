// SPDX-License-Identifier: Apache-2.0
//! Writes a fabric as its controller reads it: the network's file and the controller's own file.

use super::{Fabric, FabricSpec, SwitchKind};
use crate::node::FIRST_HOST;
use std::fmt::Write;
use std::path::Path;

/// The figures of each cable that the planner uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CableFigures {
    /// Bits per second, if the fabric itself sets no rate.
    pub bandwidth_bps: u64,
    /// Bytes of an egress queue.
    pub queue_bytes: u64,
    /// Shortest time from switch to switch; `jitter_max_ns` is how much longer it may take.
    pub latency_min_ns: u64,
    /// See `latency_min_ns`.
    pub jitter_max_ns: u64,
    /// Between a host and its switch.
    pub host_latency_min_ns: u64,
    /// See `host_latency_min_ns`.
    pub host_jitter_max_ns: u64,
}

impl Default for CableFigures {
    /// Figures that veth pairs between bridges on a shared core usually keep.
    fn default() -> Self {
        CableFigures {
            bandwidth_bps: 1_000_000_000,
            queue_bytes: 131_072,
            latency_min_ns: 1_000,
            jitter_max_ns: 20_000,
            host_latency_min_ns: 5_000,
            host_jitter_max_ns: 50_000,
        }
    }
}

/// The content of the controller's file, apart from the switches.
#[derive(Debug, Clone)]
pub struct ControllerFile<'a> {
    /// `10.71.0.254:7420`: an address of the controller's namespace.
    pub listen: &'a str,
    /// A directory that `fide controller init` made for the controller.
    pub credentials: &'a Path,
    /// The revocation list beside it.
    pub revoked: &'a Path,
    /// File for the controller's state.
    pub store: &'a Path,
    /// A file with the result of [`FabricSpec::network_file`].
    pub topology: &'a Path,
    /// Further lines of `[controller]`, as they are.
    pub extra: &'a str,
}

impl FabricSpec {
    /// The network in the planner's format: hosts, switches, and a cable with its ports for each link, in order.
    pub fn network_file(&self, figures: &CableFigures) -> String {
        let bandwidth_bps = self.rate_mbit.map_or(figures.bandwidth_bps, |mbit| u64::from(mbit) * 1_000_000);
        let mut s = format!(
            "[cables]\nbandwidth_bps = {bandwidth_bps}\nqueue_bytes = {}\nlatency_min_ns = {}\njitter_max_ns = {}\n\
             host_latency_min_ns = {}\nhost_jitter_max_ns = {}\n",
            figures.queue_bytes,
            figures.latency_min_ns,
            figures.jitter_max_ns,
            figures.host_latency_min_ns,
            figures.host_jitter_max_ns
        );
        for host in FIRST_HOST..=self.hosts {
            let _ = writeln!(s, "[[host]]\nname = \"h{host}\"");
        }
        for switch in &self.switches {
            let _ = writeln!(s, "[[switch]]\nname = \"{}\"", switch.name);
        }
        for link in &self.links {
            let (a, b) = (&link.a, &link.b);
            let _ = writeln!(
                s,
                "[[cable]]\na = \"{}\"\na_port = \"{}\"\nb = \"{}\"\nb_port = \"{}\"",
                a.node, a.port, b.node, b.port
            );
        }
        s
    }
}

impl Fabric {
    /// The file of a controller that drives all switches of this fabric.
    pub fn controller_file(&self, file: &ControllerFile<'_>) -> String {
        let mut s = format!(
            "[controller]\nlisten = \"{}\"\ncredentials = \"{}\"\nrevoked = \"{}\"\nstore = \"{}\"\ntopology = \"{}\"\n{}\n",
            file.listen,
            file.credentials.display(),
            file.revoked.display(),
            file.store.display(),
            file.topology.display(),
            file.extra
        );
        for switch in &self.switches {
            let netns = switch.node.namespace_path();
            let _ = writeln!(s, "[[switch]]\nname = \"{}\"\nnetns = \"{}\"", switch.name(), netns.display());
            match switch.kind {
                SwitchKind::Bridge => s.push_str("driver = \"linux\"\nbridge = \"br0\"\n"),
                SwitchKind::Ovs => {
                    let target = switch.ovs_target().unwrap_or_default();
                    let _ = writeln!(s, "driver = \"ovs\"\ntarget = \"{target}\"");
                }
            }
            if let Some(mbit) = self.spec.rate_mbit {
                let _ = writeln!(s, "rate_bps = {}", u64::from(mbit) * 1_000_000);
            }
        }
        s
    }
}
