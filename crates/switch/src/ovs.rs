// SPDX-License-Identifier: Apache-2.0
//! An OpenFlow 1.3 switch, through Open vSwitch's `ovs-ofctl`.
//!
//! A rule is a group of type `all` with a bucket per port, and a flow that leads there. Changes go in bundles, which a
//! switch carries out as a whole or not at all; a group that is changed keeps forwarding. The datapath in user space
//! ignores `set_queue`, so priorities are the ports' own, by traffic control as at a bridge.

mod ofctl;

use crate::link::{self, Link};
use crate::netlink::Netlink;
use crate::plan::{self, Former, Table};
use crate::queue::{self, Before};
use crate::watch::Ports;
use crate::{
    Drift, Driver, DriverError, Egress, GroupRange, Installed, Lanes, PortState, Rate, Refusal, Repaired, Rule, Watch,
};
use ofctl::{Flow, Ofctl};
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

/// Most meters that the driver numbers: one per group of its range, from 1. Open vSwitch has 262144.
const METERS_MAX: u32 = 1 << 17;
/// Bundles in which one call looks for the rules that a switch refuses. What is not found by then is told as refused as well.
const BUNDLES_MAX: usize = 512;

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

    /// Lines of a bundle that make a rule so, as far as there are ports; none if it is. And the first port that is not there.
    fn lines(&self, present: &Present, rule: &Rule, former: Former) -> (Vec<String>, Option<DriverError>) {
        let missing = rule.ports.iter().find(|port| !present.numbers.contains_key(*port));
        let has = present.table.get(&rule.group);
        let mut ports: BTreeSet<&String> = rule.ports.iter().collect();
        if missing.is_some() && former == Former::Stays {
            ports.extend(has.into_iter().flatten());
        }
        ports.retain(|port| present.numbers.contains_key(*port));
        let missing = missing.map(|port| {
            let applied: Vec<String> = ports.iter().map(|port| format!("{} {port}", rule.group)).collect();
            DriverError::no_port(rule, port, &present.numbers).with_applied(&applied)
        });
        let meter = self.meters.get(&rule.group).map(|_| self.meter_of(rule.group));
        let meter = meter.or(present.meters.get(&rule.group).copied());
        let is_so = has.is_some_and(|has| has.iter().eq(ports.iter().copied()));
        if is_so && present.meters.get(&rule.group).copied() == meter || has.is_none() && ports.is_empty() {
            return (Vec::new(), missing);
        }
        let id = u32::from(rule.group);
        let buckets: String = ports.iter().map(|port| format!(",bucket=output:{}", present.numbers[*port])).collect();
        let lines =
            vec![format!("group add_or_mod group_id={id},type=all{buckets}"), ofctl::flow_line(rule.group, meter)];
        (lines, missing)
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
        let wanted: BTreeSet<Ipv4Addr> = wanted.iter().map(|rule| rule.group).collect();
        for (group, rate) in self.meters.iter().filter(|(g, _)| wanted.contains(*g)) {
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

    fn put_right(&mut self, drift: &Drift, present: &Present, rule: Option<&Rule>) -> Result<(), DriverError> {
        match drift {
            Drift::Priority { port, .. } => {
                let link = self.links()?.into_iter().find(|link| link.state.name == *port);
                let Some((link, lanes)) = link.zip(self.prepared.clone()) else { return Ok(()) };
                self.prepare_port(&link, &lanes)
            }
            Drift::Meter { group, .. } => {
                self.ofctl.set_meter(self.meter_of(*group), self.meters[group])?;
                // Its flow has to go through it.
                let refused = rule.map(|rule| self.install_on(present, &[rule], Former::Goes)).unwrap_or_default();
                Installed { refused }.complete()
            }
            Drift::Extra { group } => self.remove(&[*group]),
            Drift::Missing { .. } | Drift::Ports { .. } | Drift::Inert { .. } => Ok(()),
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

    /// Makes of what was seen what the rules say, as far as it can; what changed since then is not looked for. Gives the groups of rules that are
    /// refused.
    fn install_on(&mut self, present: &Present, rules: &[&Rule], former: Former) -> Vec<(Ipv4Addr, DriverError)> {
        let mut refused = BTreeMap::new();
        let mut changes = Vec::new();
        for rule in rules {
            let (lines, missing) = self.lines(present, rule, former);
            refused.extend(missing.map(|why| (rule.group, why)));
            if !lines.is_empty() {
                changes.push((*rule, lines));
            }
        }
        for (group, why) in bundles(&self.ofctl, &changes) {
            refused.entry(group).or_insert(why);
        }
        refused.into_iter().collect()
    }
}

/// Carries out all that a switch does not refuse, in the order of the rules and in as few bundles as that takes: of one that is refused, nothing
/// was applied, and its halves are tried.
fn bundles(ofctl: &Ofctl, changes: &[(&Rule, Vec<String>)]) -> Vec<(Ipv4Addr, DriverError)> {
    let mut refused = Vec::new();
    let mut waiting = vec![changes];
    let mut tried = 0;
    while let Some(some) = waiting.pop() {
        if some.is_empty() {
            continue;
        }
        let lines: Vec<String> = some.iter().flat_map(|(_, lines)| lines.clone()).collect();
        let Err(why) = ofctl.bundle(&lines) else { continue };
        tried += 1;
        if some.len() > 1 && tried < BUNDLES_MAX {
            let (first, second) = some.split_at(some.len() / 2);
            waiting.extend([second, first]);
            continue;
        }
        let refusal = match why {
            DriverError::Refused { refusal, .. } => refusal,
            other => Refusal { errno: 0, said: other.to_string() },
        };
        let each = |(rule, _): &(&Rule, Vec<String>)| {
            (rule.group, DriverError::refused(format!("rule {rule}"), refusal.clone(), &[]))
        };
        refused.extend(some.iter().map(each));
    }
    refused
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

    fn install(&mut self, rules: &[Rule]) -> Result<Installed, DriverError> {
        self.range.check(rules.iter().map(|r| &r.group))?;
        let present = self.present()?;
        let rules: Vec<&Rule> = rules.iter().collect();
        Ok(Installed { refused: self.install_on(&present, &rules, Former::Stays) })
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
        let wanted: BTreeMap<Ipv4Addr, &Rule> = wanted.iter().map(|rule| (rule.group, rule)).collect();
        let is_rule = |drift: &&Drift| matches!(drift, Drift::Missing { .. } | Drift::Ports { .. });
        let groups: BTreeSet<Ipv4Addr> = found.iter().filter(is_rule).filter_map(Drift::group).collect();
        let rules: Vec<&Rule> = groups.iter().filter_map(|group| wanted.get(group).copied()).collect();
        // What was found, and nothing else: what came since would be put right untold. All of a kind at once.
        let mut rules: BTreeMap<_, _> = self.install_on(&present, &rules, Former::Goes).into_iter().collect();
        let removed = self.remove(&plan::unwanted(&found)).is_ok();
        let mut refused = Vec::new();
        for drift in &found {
            let done = match drift {
                Drift::Missing { group } | Drift::Ports { group, .. } => rules.remove(group).map_or(Ok(()), Err),
                Drift::Extra { .. } if removed => Ok(()),
                Drift::Meter { group, .. } => self.put_right(drift, &present, wanted.get(group).copied()),
                _ => self.put_right(drift, &present, None),
            };
            refused.extend(done.err().map(|why| (drift.clone(), why)));
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
