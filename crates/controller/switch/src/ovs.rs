// SPDX-License-Identifier: Apache-2.0
//! An OpenFlow 1.3 switch, through Open vSwitch's `ovs-ofctl`.
//!
//! A rule is a group of type `all` with a bucket per port, and a flow that leads there. Changes go in
//! bundles, which a switch carries out as a whole or not at all; a group that is changed keeps forwarding.
//! The datapath in user space ignores `set_queue`, so priorities are the ports' own, by traffic control as at
//! a bridge.

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
/// Bundles of one call that may be refused, in search of the refused rules. Rules not tried by then are
/// reported as refused as well; the next call tries them before all that were refused alone.
const BUNDLES_MAX: usize = 256;
/// Rules of one bundle, so that a slow switch answers in time.
const BUNDLE_RULES_MAX: usize = 512;

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
    /// Groups of rules that the switch has refused alone, the last time that they were tried.
    refused: BTreeSet<Ipv4Addr>,
}

/// The switch's state in range.
struct Present {
    /// Number of each port.
    numbers: BTreeMap<String, u32>,
    /// Ports of each group; none if no flow leads there, or one that does not know the group.
    table: Table,
    /// Meter in the flow of a group.
    meters: BTreeMap<Ipv4Addr, u32>,
    /// Groups that have both their flow and their ports: to change them takes no room.
    whole: BTreeSet<Ipv4Addr>,
}

impl Ovs {
    /// Opens a switch by what `ovs-ofctl` takes: `unix:/path/br0.mgmt`, `tcp:host:port`, a bridge's name. The
    /// ports' carriers, counters and queues are those of the interfaces of the same names in a network
    /// namespace, by its path (none: the caller's own).
    ///
    /// # Errors
    /// [`DriverError::Tool`] without `ovs-ofctl`; [`DriverError::Open`] if nothing answers there in OpenFlow
    /// 1.3.
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
            refused: BTreeSet::new(),
        })
    }

    /// The interfaces behind the ports.
    fn links(&mut self) -> Result<Vec<Link>, DriverError> {
        let names = self.ofctl.ports()?;
        let links = link::list(&mut self.netlink)?;
        Ok(links.into_iter().filter(|l| names.contains_key(&l.state.name)).collect())
    }

    /// The interfaces behind the ports, if every port has one.
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
        let (mut table, mut whole) = (Table::new(), BTreeSet::new());
        for (group, ports) in self.ofctl.groups()? {
            let group = Ipv4Addr::from(group);
            if self.range.contains(group) {
                if flows.contains_key(&group) {
                    whole.insert(group);
                }
                let leads = flows.get(&group).is_some_and(|f| f.leads_to == Some(u32::from(group)));
                let name = |n: &u32| names.get(n).map_or_else(|| format!("#{n}"), |name| name.to_string());
                let ports = if leads { ports.iter().map(name).collect() } else { BTreeSet::new() };
                table.insert(group, ports);
            }
        }
        // A flow for a group in range that leads elsewhere.
        for group in flows.keys() {
            table.entry(*group).or_default();
        }
        let meters = flows.values().filter_map(|f| Some((f.group, f.meter?))).collect();
        Ok(Present { numbers, table, meters, whole })
    }

    /// The change that a rule needs, for the ports that exist; none if it is in force. Also the error about
    /// the first missing port.
    fn change<'a>(
        &self,
        present: &Present,
        rule: &'a Rule,
        former: Former,
    ) -> (Option<Change<'a>>, Option<DriverError>) {
        let missing = rule.ports.iter().find(|port| !present.numbers.contains_key(*port));
        let has = present.table.get(&rule.group);
        let mut ports = rule.ports.clone();
        if missing.is_some() && former == Former::Stays {
            ports.extend(has.into_iter().flatten().cloned());
        }
        ports.retain(|port| present.numbers.contains_key(port));
        let missing = missing
            .map(|port| DriverError::no_port(rule, port, &present.numbers).with_applied(&plan::in_force(&ports, rule)));
        let meter = self.meters.get(&rule.group).map(|_| self.meter_of(rule.group));
        let meter = meter.or(present.meters.get(&rule.group).copied());
        let is_so = has == Some(&ports) && present.meters.get(&rule.group).copied() == meter;
        if is_so || has.is_none() && ports.is_empty() {
            return (None, missing);
        }
        let id = u32::from(rule.group);
        let buckets: String = ports.iter().map(|port| format!(",bucket=output:{}", present.numbers[port])).collect();
        let lines = [format!("group add_or_mod group_id={id},type=all{buckets}"), ofctl::flow_line(rule.group, meter)];
        (Some(Change { rule, ports, meter, lines }), missing)
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

    /// The present state, and how it differs from the wanted one.
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

    fn prepare_again(&mut self, links: &[Link], port: &str) -> Result<(), DriverError> {
        let link = links.iter().find(|link| link.state.name == port);
        let Some((link, lanes)) = link.zip(self.prepared.clone()) else { return Ok(()) };
        self.prepare_port(link, &lanes)
    }

    fn prepare_port(&mut self, link: &Link, lanes: &Lanes) -> Result<(), DriverError> {
        let name = &link.state.name;
        if let Some(before) = queue::prepare(&mut self.netlink, (name, link.index), lanes)? {
            // Keeps the first: a state that a later repair finds in its place was not set on purpose.
            self.queues_before.entry(name.clone()).or_insert(before);
        }
        Ok(())
    }

    /// Brings groups from the state in `present` to what the rules say, as far as possible, and updates
    /// `present`. Changes since `present` was read are not noticed. Returns the refused rules' groups.
    fn install_on(
        &mut self,
        present: &mut Present,
        rules: &[&Rule],
        former: Former,
    ) -> BTreeMap<Ipv4Addr, DriverError> {
        let mut refused = BTreeMap::new();
        let mut changes = Vec::new();
        for rule in rules {
            let (change, missing) = self.change(present, rule, former);
            refused.extend(missing.map(|why| (rule.group, why)));
            changes.extend(change);
        }
        // Changes that may take room come last; within each half, the ones that were refused the last time
        // come after the others.
        let turn =
            |change: &Change| (!present.whole.contains(&change.rule.group), self.refused.contains(&change.rule.group));
        changes.sort_by_key(turn);
        let kinds =
            changes.chunk_by(|a, b| turn(a) == turn(b)).flat_map(|kind| kind.chunks(BUNDLE_RULES_MAX)).collect();
        let Bundled { mut done, refused: singly, untried } = bundles(&self.ofctl, kinds);
        self.refused.retain(|group| !done.contains(group) && !untried.contains_key(group));
        self.refused.extend(singly.keys().copied());
        let (made, others): (Vec<_>, Vec<_>) = changes.into_iter().partition(|change| done.remove(&change.rule.group));
        let mut singly: BTreeMap<_, _> = singly.into_iter().chain(untried).collect();
        for rule in others.iter().map(|change| change.rule) {
            let applied = present.table.get(&rule.group).map(|has| plan::in_force(has, rule)).unwrap_or_default();
            refused.extend(singly.remove(&rule.group).map(|why| (rule.group, why.with_applied(&applied))));
        }
        for Change { rule, ports, meter, .. } in made {
            present.table.insert(rule.group, ports);
            match meter {
                Some(meter) => present.meters.insert(rule.group, meter),
                None => present.meters.remove(&rule.group),
            };
        }
        refused
    }
}

/// The change that a rule needs.
struct Change<'a> {
    rule: &'a Rule,
    /// The group's ports afterwards.
    ports: BTreeSet<String>,
    meter: Option<u32>,
    lines: [String; 2],
}

/// The outcome of changes, by their groups.
#[derive(Default)]
struct Bundled {
    done: BTreeSet<Ipv4Addr>,
    /// Refused in a bundle of its own.
    refused: BTreeMap<Ipv4Addr, DriverError>,
    /// Refused only together with others, or not tried.
    untried: BTreeMap<Ipv4Addr, DriverError>,
}

/// Carries out everything that the switch does not refuse, in as few bundles as possible. Nothing of a
/// refused bundle was applied, so its halves are tried. After a call without an answer the switch is not
/// asked any more.
fn bundles(ofctl: &Ofctl, kinds: Vec<&[Change]>) -> Bundled {
    let mut bundled = Bundled::default();
    let mut waiting = kinds;
    waiting.reverse();
    let mut failed = 0;
    while let Some(some) = waiting.pop() {
        let lines: Vec<String> = some.iter().flat_map(|change| change.lines.clone()).collect();
        let why = match ofctl.bundle(&lines) {
            Ok(()) => {
                bundled.done.extend(some.iter().map(|change| change.rule.group));
                continue;
            }
            Err(DriverError::Refused { refusal, .. }) => refusal,
            Err(other) => Refusal { errno: 0, said: other.to_string() },
        };
        failed += 1;
        if !ofctl.is_answer(&why) || failed == BUNDLES_MAX {
            waiting.push(some);
            let why = if ofctl.is_answer(&why) {
                Refusal {
                    errno: 0,
                    said: format!("not tried by itself yet, as {} others were refused", bundled.refused.len()),
                }
            } else {
                why
            };
            let untried = waiting.iter().flat_map(|some| some.iter()).map(|change| change.rule);
            bundled.untried = untried.map(|rule| (rule.group, refused_rule(rule, why.clone()))).collect();
            break;
        }
        match some {
            [change] => drop(bundled.refused.insert(change.rule.group, refused_rule(change.rule, why))),
            _ => {
                let (first, second) = some.split_at(some.len() / 2);
                waiting.extend([second, first]);
            }
        }
    }
    bundled
}

fn refused_rule(rule: &Rule, refusal: Refusal) -> DriverError {
    DriverError::refused(format!("rule {rule}"), refusal)
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
        let mut present = self.present()?;
        let rules: Vec<&Rule> = plan::by_group(rules).into_values().collect();
        Ok(Installed { refused: self.install_on(&mut present, &rules, Former::Stays).into_iter().collect() })
    }

    fn remove(&mut self, groups: &[Ipv4Addr]) -> Result<(), DriverError> {
        self.range.check(groups)?;
        let present = self.present()?;
        self.refused.retain(|group| !groups.contains(group));
        let there: Vec<_> = groups.iter().filter(|g| present.table.contains_key(g)).collect();
        let lines = |g: &&Ipv4Addr| [ofctl::delete_flow_line(**g), format!("group delete group_id={}", u32::from(**g))];
        let lines: Vec<_> = there.iter().flat_map(lines).collect();
        if !lines.is_empty() {
            self.ofctl.bundle(&lines).map_err(|e| refused(e, "removing groups"))?;
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
        let (mut present, found) = self.look(wanted)?;
        let links =
            if found.iter().any(|drift| matches!(drift, Drift::Priority { .. })) { self.links()? } else { Vec::new() };
        let by_group = plan::by_group(wanted);
        // Only the differences that were found: repairing later ones would leave them unreported. Limits
        // first: a rule that has one needs it.
        let mut limits = BTreeMap::new();
        let mut silent: Option<String> = None;
        for group in found.iter().filter_map(limit_of) {
            let done =
                if silent.is_none() { self.ofctl.set_meter(self.meter_of(group), self.meters[&group]) } else { Ok(()) };
            if let Some(why) = silent.clone().or(done.err().map(|why| why.to_string())) {
                silent = (!self.ofctl.is_answer(&why)).then(|| why.clone());
                limits.insert(group, why);
            }
        }
        let is_there = |group: &Ipv4Addr| !limits.contains_key(group);
        let groups: BTreeSet<Ipv4Addr> =
            found.iter().filter_map(|drift| drift.group().or(limit_of(drift).filter(is_there))).collect();
        let rules: Vec<&Rule> = groups.iter().filter_map(|group| by_group.get(group).copied()).collect();
        self.refused.retain(|group| by_group.contains_key(group));
        let mut rules = self.install_on(&mut present, &rules, Former::Goes);
        let unwanted = plan::unwanted(&found);
        let removed = self.remove(&unwanted).map_err(|why| why.to_string());
        if removed.is_ok() {
            for group in &unwanted {
                present.table.remove(group);
            }
        }
        // The limit of a rule that could not be repaired as a whole cannot be repaired, either.
        let without: BTreeSet<Ipv4Addr> = rules.keys().copied().collect();
        let mut refused = Vec::new();
        for drift in &found {
            let said =
                |what: String, said: &str| Err(DriverError::refused(what, Refusal { errno: 0, said: said.into() }));
            let done = match drift {
                Drift::Missing { group } | Drift::Ports { group, .. } => rules.remove(group).map_or(Ok(()), Err),
                Drift::Meter { group, .. } => match limits.get(group) {
                    Some(why) => said(format!("the limit of group {group}"), why),
                    None if without.contains(group) => {
                        said(format!("the limit of group {group}"), "its rule is refused")
                    }
                    None => Ok(()),
                },
                Drift::Extra { group } => match &removed {
                    Ok(()) => Ok(()),
                    // One by one, if it was said of one.
                    Err(why) if self.ofctl.is_answer(why) => {
                        self.remove(&[*group]).inspect(|()| drop(present.table.remove(group)))
                    }
                    Err(why) => said(format!("removing group {group}"), why),
                },
                Drift::Priority { port, .. } => self.prepare_again(&links, port),
                Drift::Inert { .. } => Ok(()),
            };
            refused.extend(done.err().map(|why| (drift.clone(), why)));
        }
        Ok(Repaired::new(found, refused, plan::drift(&present.table, wanted)))
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
            return Err(DriverError::refused(format!("group {group}"), Refusal { errno: 0, said }));
        }
        if !self.present()?.table.contains_key(&group) {
            let said = "it is not installed; install it first".into();
            return Err(DriverError::refused(format!("limiting group {group}"), Refusal { errno: 0, said }));
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

/// The group whose limit it is about.
fn limit_of(drift: &Drift) -> Option<Ipv4Addr> {
    if let Drift::Meter { group, .. } = drift { Some(*group) } else { None }
}

/// The error with the rule that it was about.
fn refused(error: DriverError, what: &str) -> DriverError {
    match error {
        DriverError::Refused { refusal, .. } => DriverError::refused(what, refusal),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The switch may be gone, or slower than its time limit. That says nothing about any rule, and each
    /// further call would have to be waited for.
    #[test]
    fn switch_that_does_not_answer_is_asked_once() {
        let rule = |n: u32| Rule::new(Ipv4Addr::from(0xef47_0000 + n), ["h2"]);
        let rules: Vec<Rule> = (0..2000).map(rule).collect();
        let change = |rule| Change { rule, ports: BTreeSet::new(), meter: None, lines: [String::new(), String::new()] };
        let changes: Vec<Change> = rules.iter().map(change).collect();
        let (some, others) = changes.split_at(5);
        // Also if there is no such program.
        let bundled = bundles(&Ofctl::new("unix:/nonexistent/br0.mgmt"), vec![some, others]);
        assert_eq!((bundled.done.len(), bundled.refused.len(), bundled.untried.len()), (0, 0, 2000));
    }
}
