// SPDX-License-Identifier: Apache-2.0
//! An OpenFlow 1.3 switch, through Open vSwitch's `ovs-ofctl`.
//!
//! A rule is a group of type `all` with a bucket per port, and a flow that leads there. Changes go in bundles, which a
//! switch carries out as a whole or not at all; a group that is changed keeps forwarding. The datapath in user space
//! ignores `set_queue`, so priorities are the ports' own, by traffic control as at a bridge.

mod ofctl;

use crate::link::{self, Link};
use crate::netlink::Netlink;
use crate::plan::{self, Table};
use crate::queue::{self, Before};
use crate::types::join;
use crate::watch::Ports;
use crate::{Drift, Driver, DriverError, Egress, GroupRange, Lanes, PortState, Rate, Refusal, Repaired, Rule, Watch};
use ofctl::{Flow, Ofctl};
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

/// Most meters that the driver numbers: one per group of its range, from 1. Open vSwitch has 262144.
const METERS_MAX: u32 = 1 << 17;

/// A bridge of Open vSwitch, or another switch that `ovs-ofctl` reaches.
pub struct Ovs {
    ofctl: Ofctl,
    netns: Option<PathBuf>,
    range: GroupRange,
    netlink: Netlink,
    prepared: Option<Lanes>,
    /// By name of the port.
    queues_before: BTreeMap<String, Before>,
    /// Limits set through this driver.
    meters: BTreeMap<Ipv4Addr, Rate>,
}

/// What the switch has in range.
struct Present {
    /// Number of each port.
    numbers: BTreeMap<String, u32>,
    /// Ports of each group; none if no flow leads there, or one that does not know the group.
    table: Table,
    /// Meter in the flow of a group.
    meters: BTreeMap<Ipv4Addr, u32>,
}

impl Ovs {
    /// Opens a switch by what `ovs-ofctl` takes: `unix:/path/br0.mgmt`, `tcp:host:port`, a bridge's name. The ports'
    /// carriers, counters and queues are those of the interfaces of the same names in a network namespace, by its path
    /// (none: the caller's own).
    ///
    /// # Errors
    /// [`DriverError::Tool`] without `ovs-ofctl`; [`DriverError::Open`] if nothing answers there in OpenFlow 1.3.
    pub fn open(target: &str, netns: Option<&Path>, range: GroupRange) -> Result<Ovs, DriverError> {
        let ofctl = Ofctl::new(target);
        ofctl.ports().map_err(|e| match e {
            DriverError::Refused { refusal, .. } => DriverError::Open {
                switch: format!("OpenFlow switch {target}"),
                why: format!("{refusal}; it has to be there and speak OpenFlow 1.3 (protocols=OpenFlow13)"),
            },
            other => other,
        })?;
        Ok(Ovs {
            ofctl,
            netns: netns.map(Path::to_path_buf),
            range,
            netlink: Netlink::open(netns)?,
            prepared: None,
            queues_before: BTreeMap::new(),
            meters: BTreeMap::new(),
        })
    }

    /// The interfaces behind the ports.
    fn links(&mut self) -> Result<Vec<Link>, DriverError> {
        let names = self.ofctl.ports()?;
        let links = link::list(&mut self.netlink)?;
        Ok(links.into_iter().filter(|l| names.contains_key(&l.state.name)).collect())
    }

    /// The same, if every port has one.
    fn all_links(&mut self, for_what: &str) -> Result<Vec<Link>, DriverError> {
        let links = self.links()?;
        let there: BTreeSet<_> = links.iter().map(|l| &l.state.name).collect();
        match self.ofctl.ports()?.keys().find(|p| !there.contains(p)) {
            None => Ok(links),
            Some(port) => Err(DriverError::Unsupported {
                what: format!("{for_what} at port {port}"),
                why: "no interface of that name is in the namespace that this driver was opened with; queues and what \
                      a port hears are the interfaces' own, so open it in the switch's namespace, on its host"
                    .into(),
            }),
        }
    }

    fn present(&self) -> Result<Present, DriverError> {
        let numbers = self.ofctl.ports()?;
        let names: BTreeMap<u32, &String> = numbers.iter().map(|(name, n)| (*n, name)).collect();
        let flows: BTreeMap<Ipv4Addr, Flow> = self.ofctl.flows(self.range)?.into_iter().map(|f| (f.group, f)).collect();
        let mut table = Table::new();
        for (group, ports) in self.ofctl.groups()? {
            let group = Ipv4Addr::from(group);
            if self.range.contains(group) {
                let leads = flows.get(&group).is_some_and(|f| f.leads_to == Some(u32::from(group)));
                let name = |n: &u32| names.get(n).map_or_else(|| format!("#{n}"), |name| name.to_string());
                table.insert(group, ports.iter().filter(|_| leads).map(name).collect());
            }
        }
        // A flow for a group in range that leads elsewhere.
        for group in flows.keys() {
            table.entry(*group).or_default();
        }
        let meters = flows.values().filter_map(|f| Some((f.group, f.meter?))).collect();
        Ok(Present { numbers, table, meters })
    }

    /// Lines of a bundle that make a rule so; none if it is.
    fn lines(&self, present: &Present, rule: &Rule, applied: &[String]) -> Result<Vec<String>, DriverError> {
        let mut buckets = String::new();
        for port in &rule.ports {
            let Some(number) = present.numbers.get(port) else {
                let have: BTreeSet<_> = present.numbers.keys().cloned().collect();
                return Err(DriverError::NoPort {
                    rule: rule.to_string(),
                    port: port.clone(),
                    have: join(&have),
                    applied: crate::error::list(applied),
                });
            };
            buckets.push_str(&format!(",bucket=output:{number}"));
        }
        let meter = self.meters.get(&rule.group).map(|_| self.meter_of(rule.group));
        let meter = meter.or(present.meters.get(&rule.group).copied());
        if present.table.get(&rule.group) == Some(&rule.ports) && present.meters.get(&rule.group).copied() == meter {
            return Ok(Vec::new());
        }
        let id = u32::from(rule.group);
        Ok(vec![format!("group add_or_mod group_id={id},type=all{buckets}"), ofctl::flow_line(rule.group, meter)])
    }

    fn meter_of(&self, group: Ipv4Addr) -> u32 {
        self.range.offset(group) + 1
    }

    fn meter_drift(&self, present: &Present, wanted: &[Rule]) -> Result<Vec<Drift>, DriverError> {
        if self.meters.is_empty() {
            return Ok(Vec::new());
        }
        let there = self.ofctl.meters()?;
        let mut found = Vec::new();
        for (group, rate) in self.meters.iter().filter(|(g, _)| wanted.iter().any(|r| r.group == **g)) {
            let id = self.meter_of(*group);
            let why = match there.get(&id) {
                None => "its meter is missing".into(),
                Some(r) if r != rate => format!("its meter lets {} packets per second through", r.packets_per_s),
                _ if present.table.contains_key(group) && present.meters.get(group) != Some(&id) => {
                    "its flow does not go through the meter".into()
                }
                _ => continue,
            };
            found.push(Drift::Meter { group: *group, why });
        }
        Ok(found)
    }

    /// What is there, and how it differs from what is wanted.
    fn look(&mut self, wanted: &[Rule]) -> Result<(Present, Vec<Drift>), DriverError> {
        self.range.check(wanted.iter().map(|r| &r.group))?;
        let mut found = Vec::new();
        if let Some(lanes) = self.prepared.clone() {
            for link in self.links()? {
                let port = link.state.name;
                if let Some(why) = queue::fault(&mut self.netlink, (&port, link.index), &lanes)? {
                    found.push(Drift::Priority { port, why });
                }
            }
        }
        let present = self.present()?;
        found.extend(plan::drift(&present.table, wanted));
        found.extend(self.meter_drift(&present, wanted)?);
        Ok((present, found))
    }

    fn put_right(&mut self, drift: &Drift, present: &Present, wanted: &[Rule]) -> Result<(), DriverError> {
        match drift {
            Drift::Priority { port, .. } => {
                let link = self.links()?.into_iter().find(|link| link.state.name == *port);
                let Some((link, lanes)) = link.zip(self.prepared.clone()) else { return Ok(()) };
                self.prepare_port(&link, &lanes)
            }
            Drift::Meter { group, .. } => {
                self.ofctl.set_meter(self.meter_of(*group), self.meters[group])?;
                // Its flow has to go through it.
                let rule = wanted.iter().find(|rule| rule.group == *group);
                rule.map_or(Ok(()), |rule| self.install_on(present, std::slice::from_ref(rule)))
            }
            Drift::Missing { group } | Drift::Ports { group, .. } => {
                let rule = wanted.iter().find(|rule| rule.group == *group);
                rule.map_or(Ok(()), |rule| self.install_on(present, std::slice::from_ref(rule)))
            }
            Drift::Extra { group } => self.remove(&[*group]),
            Drift::Inert { .. } => Ok(()),
        }
    }

    fn prepare_port(&mut self, link: &Link, lanes: &Lanes) -> Result<(), DriverError> {
        let name = &link.state.name;
        if let Some(before) = queue::prepare(&mut self.netlink, (name, link.index), lanes)? {
            // The first: what a later repair finds in its place was nobody's plan.
            self.queues_before.entry(name.clone()).or_insert(before);
        }
        Ok(())
    }

    /// Makes of what was seen what the rules say; what changed since then is not looked for.
    fn install_on(&mut self, present: &Present, rules: &[Rule]) -> Result<(), DriverError> {
        let mut each = Vec::new();
        for rule in rules {
            each.push((rule, self.lines(present, rule, &[])?));
        }
        each.retain(|(_, lines)| !lines.is_empty());
        let all: Vec<_> = each.iter().flat_map(|(_, lines)| lines.clone()).collect();
        if all.is_empty() || self.ofctl.bundle(&all).is_ok() {
            return Ok(());
        }
        // Nothing was applied. One rule at a time, to name the one that is refused.
        let mut applied = Vec::new();
        for (rule, lines) in each {
            self.ofctl.bundle(&lines).map_err(|e| refused(e, &format!("rule {rule}"), &applied))?;
            applied.push(rule.to_string());
        }
        Ok(())
    }
}

impl Driver for Ovs {
    fn describe(&self) -> String {
        format!("OpenFlow switch {}", self.ofctl.target())
    }

    fn ports(&mut self) -> Result<Vec<PortState>, DriverError> {
        let mut ports: Vec<_> = self.links()?.into_iter().map(|l| l.state).collect();
        ports.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(ports)
    }

    fn egress(&mut self) -> Result<BTreeMap<String, Egress>, DriverError> {
        let links = self.all_links("what leaves it")?;
        links.iter().map(|l| Ok((l.state.name.clone(), queue::egress(&mut self.netlink, l)?))).collect()
    }

    fn prepare(&mut self, lanes: &Lanes) -> Result<(), DriverError> {
        lanes.check()?;
        for link in self.all_links("strict priority")? {
            self.prepare_port(&link, lanes)?;
        }
        self.prepared = Some(lanes.clone());
        Ok(())
    }

    fn install(&mut self, rules: &[Rule]) -> Result<(), DriverError> {
        self.range.check(rules.iter().map(|r| &r.group))?;
        let present = self.present()?;
        self.install_on(&present, rules)
    }

    fn remove(&mut self, groups: &[Ipv4Addr]) -> Result<(), DriverError> {
        self.range.check(groups)?;
        let present = self.present()?;
        let there: Vec<_> = groups.iter().filter(|g| present.table.contains_key(g)).collect();
        let lines = |g: &&Ipv4Addr| [ofctl::delete_flow_line(**g), format!("group delete group_id={}", u32::from(**g))];
        let lines: Vec<_> = there.iter().flat_map(lines).collect();
        if !lines.is_empty() {
            self.ofctl.bundle(&lines).map_err(|e| refused(e, "removing groups", &[]))?;
        }
        for group in groups {
            if self.meters.remove(group).is_some() || present.meters.contains_key(group) {
                self.ofctl.delete_meter(self.meter_of(*group))?;
            }
        }
        Ok(())
    }

    fn audit(&mut self, wanted: &[Rule]) -> Result<Vec<Drift>, DriverError> {
        Ok(self.look(wanted)?.1)
    }

    fn repair(&mut self, wanted: &[Rule]) -> Result<Repaired, DriverError> {
        let (present, found) = self.look(wanted)?;
        let is_rule = |drift: &&Drift| matches!(drift, Drift::Missing { .. } | Drift::Ports { .. });
        let groups: BTreeSet<_> = found.iter().filter(is_rule).filter_map(Drift::group).collect();
        let rules: Vec<Rule> = wanted.iter().filter(|rule| groups.contains(&rule.group)).cloned().collect();
        // What was found, and nothing else: what came since would be put right untold. All rules in one bundle; where it is refused, one by one.
        let installed = self.install_on(&present, &rules).is_ok();
        let removed = self.remove(&plan::unwanted(&found)).is_ok();
        let is_done = |drift: &&Drift| installed && is_rule(drift) || removed && matches!(drift, Drift::Extra { .. });
        let mut refused = Vec::new();
        for drift in found.iter().filter(|drift| !is_done(drift)) {
            if let Err(why) = self.put_right(drift, &present, wanted) {
                refused.push((drift.clone(), why));
            }
        }
        Ok(Repaired { found, refused })
    }

    fn meter(&mut self, group: Ipv4Addr, rate: Option<Rate>) -> Result<(), DriverError> {
        self.range.check(&[group])?;
        let id = self.meter_of(group);
        if id > METERS_MAX {
            return Err(DriverError::Unsupported {
                what: format!("a limit for group {group}"),
                why: format!("it is number {id} of {}, and {METERS_MAX} have meters; give a smaller range", self.range),
            });
        }
        if rate.is_some_and(|r| r.packets_per_s == 0 || r.burst_packets == 0) {
            let said = "a limit of 0 packets lets nothing through; remove the group instead".into();
            return Err(DriverError::refused(format!("group {group}"), Refusal { errno: 0, said }, &[]));
        }
        if !self.present()?.table.contains_key(&group) {
            let said = "it is not installed; install it first".into();
            return Err(DriverError::refused(format!("limiting group {group}"), Refusal { errno: 0, said }, &[]));
        }
        match rate {
            Some(rate) => {
                self.ofctl.set_meter(id, rate)?;
                self.ofctl.bundle(&[ofctl::flow_line(group, Some(id))])?;
                self.meters.insert(group, rate);
            }
            None => {
                self.ofctl.bundle(&[ofctl::flow_line(group, None)])?;
                self.ofctl.delete_meter(id)?;
                self.meters.remove(&group);
            }
        }
        Ok(())
    }

    fn watch(&mut self) -> Result<Watch, DriverError> {
        let names = self.ofctl.ports()?.into_keys().collect();
        Watch::open(self.netns.as_deref(), Ports::Named(names))
    }

    fn restore(&mut self) -> Result<(), DriverError> {
        let all: Vec<_> = self.present()?.table.into_keys().collect();
        self.remove(&all)?;
        for link in self.links()? {
            let before = self.queues_before.get(&link.state.name);
            queue::restore(&mut self.netlink, (&link.state.name, link.index), before)?;
            self.queues_before.remove(&link.state.name);
        }
        self.prepared = None;
        Ok(())
    }
}

/// With the rule that it was about.
fn refused(error: DriverError, what: &str, applied: &[String]) -> DriverError {
    match error {
        DriverError::Refused { refusal, .. } => DriverError::refused(what, refusal, applied),
        other => other,
    }
}
