// SPDX-License-Identifier: Apache-2.0
//! Installs a controller's rules in a switch, and reports the result.
//!
//! Each (sender, tree) has a multicast group of its own, so a switch needs to know one thing: group → ports
//! ([`Rule`]). Beside it, the lane's packets go before all others at every port ([`Lanes`]; strict priority,
//! X-Lane §4.2).
//!
//! ```text
//!  controller ── Driver ─┬─ linux: netlink ──► bridge's multicast entries, queueing disciplines of its ports
//!                        └─ ovs: ovs-ofctl ──► OpenFlow 1.3 groups, flows, meters; the ports' queues as above
//! ```
//!
//! * [`Driver`] is the whole interface; [`linux::Linux`] and [`ovs::Ovs`] implement it.
//! * A driver is given a [`GroupRange`] and never touches a group outside of it: everything else in the
//!   switch stays.
//! * Changing a group is make before break: a port that stays loses no packet.
//! * A change from outside is a [`Drift`], found by [`Driver::audit`] and repaired by [`Driver::repair`].
//! * [`Watch`] is a descriptor to poll, readable when a cable was cut or plugged in.
//!
//! **Invariant: knows switches, not trees.** The planner knows what a group is for, and where its tree
//! goes.

#![forbid(unsafe_code)]

mod error;
mod link;
pub mod linux;
mod mdb;
mod netlink;
pub mod ovs;
mod plan;
mod queue;
mod types;
mod watch;

pub use error::{DriverError, Refusal};
pub use link::PortState;
pub use types::{Drift, Egress, GroupRange, Installed, Lanes, MAX_SUB_LANES, Rate, Repaired, Rule};
pub use watch::{CarrierChange, Watch};

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// One switch, open to be changed. Every call finishes what it does before it returns, and may be repeated.
pub trait Driver: Send {
    /// Kind, name and place of the switch, for messages.
    fn describe(&self) -> String;

    /// Ports with their carrier and counters, by name.
    fn ports(&mut self) -> Result<Vec<PortState>, DriverError>;

    /// What leaves each port, by name. Changes nothing.
    ///
    /// # Errors
    /// [`DriverError::Unsupported`] if a port is no interface of this machine.
    fn egress(&mut self) -> Result<BTreeMap<String, Egress>, DriverError>;

    /// Makes the switch ready: installed rules take effect, and each port serves the lanes first. Remembers
    /// the state before, for [`Driver::restore`]. Packets in a port's queue are lost when that is replaced,
    /// so call it before the first rule. If everything is as it should be, nothing is touched.
    fn prepare(&mut self, lanes: &Lanes) -> Result<(), DriverError>;

    /// Adds or changes groups. Other groups are not interrupted, nor are ports that a group keeps. A
    /// refusal of one rule does not delay other rules. A refused rule gets all ports that are possible, and
    /// keeps its former ones. Calling it again completes it. If a group comes twice, the last rule counts.
    /// If an OpenFlow switch refuses so many rules that each cannot be found at once, others that need as
    /// much room are reported as refused, too, until a later call has tried them.
    ///
    /// # Errors
    /// The switch cannot be read, or a group is out of range: nothing was touched.
    fn install(&mut self, rules: &[Rule]) -> Result<Installed, DriverError>;

    /// Removes groups; a group that is not there counts as removed.
    fn remove(&mut self, groups: &[Ipv4Addr]) -> Result<(), DriverError>;

    /// What differs from `wanted` and from what was prepared, within the driver's range of groups.
    fn audit(&mut self, wanted: &[Rule]) -> Result<Vec<Drift>, DriverError>;

    /// As [`Driver::audit`], and repairs the differences, as far as possible, and nothing else: a refused
    /// rule gets the ports that are possible, and loses ports that it does not name.
    ///
    /// # Errors
    /// As of [`Driver::audit`]: nothing was touched.
    fn repair(&mut self, wanted: &[Rule]) -> Result<Repaired, DriverError>;

    /// Drops packets beyond a rate in an installed group; `None` removes the limit.
    ///
    /// # Errors
    /// [`DriverError::Unsupported`] with the reason, if the switch cannot.
    fn meter(&mut self, group: Ipv4Addr, rate: Option<Rate>) -> Result<(), DriverError>;

    /// A descriptor to poll for carrier changes of the ports.
    fn watch(&mut self) -> Result<Watch, DriverError>;

    /// Removes all groups in range and the queues that it made, and restores the state before
    /// [`Driver::prepare`] as far as this driver saw it.
    fn restore(&mut self) -> Result<(), DriverError>;
}
