// SPDX-License-Identifier: Apache-2.0
//! A network of several switches between dual-homed hosts, for trees that are planned and installed.
//!
//! ```text
//!        s1    s2         FabricSpec::two_tier(4, 2, 2): every leaf at every spine
//!      / || \ / || \
//!   l1a l1b     l2a l2b   one namespace each: a bridge br0 or an Open vSwitch; ports named after the neighbour
//!     \ / \ /     \ / \ /
//!     h1   h2     h3   h4 p0 at the first, p1 at the second switch of the pair
//! ```
//!
//! The graph has loops, so switches flood and learn nothing: a packet goes where an installed rule says, or
//! nowhere. The code under test (the crate `fide-switch`) installs the rules, not this module.

mod controller;
mod count;
mod cut;
mod flood;
mod ovs;
mod plan_files;
mod spec;
mod wire;

pub use controller::{CONTROLLER_ADDRESS, Controller, ControllerSpec};
pub use count::LinkCounters;
pub use cut::Cut;
pub use flood::{LinkFlood, LinkFloodReport, LinkFloodSpec};
pub use ovs::ovs_supported;
pub use plan_files::{CableFigures, ControllerFile};
pub use spec::{End, FabricSpec, LinkSpec, MAX_LINKS, MAX_SWITCHES, SwitchKind, SwitchSpec, ThreeTier};

use crate::names::Owner;
use crate::node::{Cluster, FIRST_HOST, Host, Node, ready_to_build};
use crate::reaper::Reaper;
use crate::sys::LinkControl;
use crate::{Error, Result};
use std::path::{Path, PathBuf};

/// One switch of a fabric.
#[derive(Debug)]
pub struct Switch {
    node: Node,
    kind: SwitchKind,
    control: LinkControl,
    ovs: Option<ovs::Ovs>,
}

impl Switch {
    /// Its name in the specification.
    pub fn name(&self) -> &str {
        self.node.name()
    }

    /// What it is made of.
    pub fn kind(&self) -> SwitchKind {
        self.kind
    }

    /// Its namespace, which holds the ports and the bridge `br0`.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The target by which `ovs-ofctl` reaches this switch; `None` for a bridge.
    pub fn ovs_target(&self) -> Option<String> {
        self.ovs.as_ref().map(ovs::Ovs::target)
    }
}

/// A fabric on this machine. It is removed when this is dropped; if its creator is killed, a reaper removes
/// it.
#[derive(Debug)]
pub struct Fabric {
    spec: FabricSpec,
    hosts: Vec<Host>,
    switches: Vec<Switch>,
    controller: Option<Node>,
    scratch: PathBuf,
    reaper: Reaper,
}

impl Fabric {
    /// Removes what dead runs left behind (and reports it on stderr), then builds. When this returns, every
    /// port forwards what rules allow.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without root; [`Error::Spec`]; [`Error::MissingProgram`] without Open vSwitch where a
    /// switch asks for it; [`Error::Tool`] with what iproute2 said. What was built so far is removed.
    pub fn build(spec: FabricSpec) -> Result<Fabric> {
        spec.check()?;
        let _guard = ready_to_build()?;
        let owner = Owner::new()?;
        let scratch = owner.scratch();
        std::fs::create_dir_all(&scratch).map_err(|e| Error::io(format!("making {}", scratch.display()), e))?;
        let mut reaper = Reaper::start(&wire::namespaces(&spec, &owner), &scratch)?;
        match wire::wire(&spec, &owner, &scratch) {
            Ok(w) => {
                Ok(Fabric { spec, hosts: w.hosts, switches: w.switches, controller: w.controller, scratch, reaper })
            }
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
        let there = (FIRST_HOST..=self.hosts.len()).contains(&host);
        assert!(there, "no host {host}: this fabric has hosts {FIRST_HOST} to {}", self.hosts.len());
        &self.hosts[host - FIRST_HOST]
    }

    /// All hosts, in order.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// Switch by name.
    pub fn switch(&self, name: &str) -> Result<&Switch> {
        self.switches.iter().find(|s| s.name() == name).ok_or_else(|| {
            let names: Vec<_> = self.switches.iter().map(Switch::name).collect();
            Error::Spec(format!("no switch `{name}`: there are {}", names.join(", ")))
        })
    }

    /// All switches, as in the specification.
    pub fn switches(&self) -> &[Switch] {
        &self.switches
    }

    /// The node for a controller; `None` without a management network.
    pub fn controller(&self) -> Option<&Node> {
        self.controller.as_ref()
    }

    /// What was built.
    pub fn spec(&self) -> &FabricSpec {
        &self.spec
    }

    /// The link between two nodes.
    pub fn link(&self, one: &str, other: &str) -> Result<usize> {
        self.spec.link_between(one, other).ok_or_else(|| Error::Spec(format!("no link between `{one}` and `{other}`")))
    }

    /// Namespace of a host or switch.
    fn node(&self, name: &str) -> Result<&Node> {
        let host = self.hosts.iter().map(Host::node).find(|n| n.name() == name);
        host.map_or_else(|| self.switch(name).map(Switch::node), Ok)
    }

    /// A directory for configuration, sockets and logs, removed with the fabric unless [`Fabric::keep_scratch`].
    pub fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// Leaves the scratch directory in place when the fabric is removed (until a sweep after this process's
    /// end).
    pub fn keep_scratch(&mut self) {
        self.reaper.keep_scratch();
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

impl Cluster for Fabric {
    fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    fn scratch(&self) -> &Path {
        &self.scratch
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        // The switches' processes are children of this process: they are waited for here, before the reaper
        // looks for them.
        self.switches.clear();
        self.reaper.finish();
    }
}
