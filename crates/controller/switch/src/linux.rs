// SPDX-License-Identifier: Apache-2.0
//! A Linux bridge, by netlink: the interface that switch hardware under switchdev offers as well.

mod bridge;

use crate::link::{self, Link};
use crate::mdb::{self, Entry};
use crate::netlink::Netlink;
use crate::plan::{self, Former, Table};
use crate::queue::{self, Before};
use crate::watch::Ports;
use crate::{Drift, Driver, DriverError, Egress, GroupRange, Installed, Lanes, PortState, Rate, Repaired, Rule, Watch};
use bridge::Snooping;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

/// A bridge in a network namespace.
pub struct Linux {
    name: String,
    netns: Option<PathBuf>,
    range: GroupRange,
    netlink: Netlink,
    bridge: u32,
    prepared: Option<Lanes>,
    /// By name of the port.
    queues_before: BTreeMap<String, Before>,
    snooping_before: Option<Snooping>,
}

impl Linux {
    /// Opens a bridge by its name, in a network namespace by its path (`/run/netns/NAME`); none: the caller's
    /// own.
    ///
    /// # Errors
    /// [`DriverError::Open`] if there is no such bridge; [`DriverError::Io`] without the right to enter the
    /// namespace.
    pub fn open(netns: Option<&Path>, bridge: &str, range: GroupRange) -> Result<Linux, DriverError> {
        let mut netlink = Netlink::open(netns)?;
        let links = link::list(&mut netlink)?;
        let open = |why| DriverError::Open { switch: format!("bridge {bridge}"), why };
        let found = links.iter().find(|l| l.state.name == bridge).ok_or_else(|| {
            let bridges: Vec<_> = links.iter().filter(|l| l.bridge).map(|l| l.state.name.as_str()).collect();
            open(format!("no interface has that name; the bridges are: {}", bridges.join(" ")))
        })?;
        if !found.bridge {
            return Err(open("it is an interface, but not a bridge".into()));
        }
        Ok(Linux {
            name: bridge.into(),
            netns: netns.map(Path::to_path_buf),
            range,
            bridge: found.index,
            netlink,
            prepared: None,
            queues_before: BTreeMap::new(),
            snooping_before: None,
        })
    }

    /// The bridge's ports.
    fn links(&mut self) -> Result<Vec<Link>, DriverError> {
        let all = link::list(&mut self.netlink)?;
        Ok(all.into_iter().filter(|l| l.master == Some(self.bridge)).collect())
    }

    /// Entries in range.
    fn entries(&mut self) -> Result<Vec<Entry>, DriverError> {
        let all = mdb::list(&mut self.netlink, self.bridge).map_err(|e| e.on("listing multicast entries"))?;
        Ok(all.into_iter().filter(|e| self.range.contains(e.group)).collect())
    }

    /// One change of an entry.
    fn apply(&mut self, entry: Entry, add: bool, (rule, port): (&str, &str)) -> Result<(), DriverError> {
        let done = if add {
            mdb::add(&mut self.netlink, self.bridge, entry.group, entry.port)
        } else {
            mdb::delete(&mut self.netlink, self.bridge, entry)
        };
        match done {
            Ok(()) => {}
            // It went by itself, or with its port.
            Err(e) if !add && (e.is(Errno::NOENT) || e.is(Errno::NODEV) || e.is(Errno::INVAL)) => {}
            Err(e) => {
                let what = if add { "adding" } else { "removing" };
                return Err(e.on(format!("{rule}: {what} port {port}")));
            }
        }
        Ok(())
    }

    /// The present state, and how it differs from the wanted one.
    fn look(&mut self, wanted: &[Rule]) -> Result<(Seen, Vec<Drift>), DriverError> {
        self.range.check(wanted.iter().map(|r| &r.group))?;
        let links = self.links()?;
        let mut found = Vec::new();
        if let Some(why) = bridge::inert(&mut self.netlink, (&self.name, self.bridge))? {
            found.push(Drift::Inert { why });
        }
        if let Some(lanes) = self.prepared.clone() {
            for link in &links {
                let port = link.state.name.clone();
                if let Some(why) = queue::fault(&mut self.netlink, (&port, link.index), &lanes)? {
                    found.push(Drift::Priority { port, why });
                }
            }
        }
        let seen = Seen::new(links, self.entries()?);
        found.extend(plan::drift(&seen.table(), wanted));
        Ok((seen, found))
    }

    /// Brings a rule's group from the state in `seen` to what the rule says, as far as possible, and
    /// updates `seen`. Changes since `seen` was read are not noticed.
    ///
    /// # Errors
    /// The first refusal.
    fn install_on(&mut self, seen: &mut Seen, rule: &Rule, former: Former) -> Result<(), DriverError> {
        let what = format!("rule {rule}");
        let mut first = None;
        for port in plan::change(&seen.ports_of(rule.group), rule).add {
            let done = match seen.numbers.get(&port) {
                None => Err(seen.no_port(rule, &port)),
                Some(index) => {
                    let entry = Entry { group: rule.group, port: *index, permanent: true };
                    self.apply(entry, true, (&what, &port)).map(|()| seen.put(entry))
                }
            };
            first = first.or(done.err());
        }
        // Only now: learned entries too, because a group's packets go where its rule says and nowhere else.
        if first.is_none() || former == Former::Goes {
            let others = seen.take_others(rule);
            first = first.or(self.take_away(seen, others, &what));
        }
        first.map_or(Ok(()), |why| Err(why.with_applied(&plan::in_force(&seen.ports_of(rule.group), rule))))
    }

    /// Removes entries that were taken out of `seen`; a refused one is put back there. Returns the first
    /// refusal.
    fn take_away(&mut self, seen: &mut Seen, entries: Vec<Entry>, what: &str) -> Option<DriverError> {
        let mut first = None;
        for entry in entries {
            let port = seen.name(entry.port);
            if let Err(why) = self.apply(entry, false, (what, &port)) {
                seen.put(entry);
                first = first.or(Some(why));
            }
        }
        first
    }

    fn put_right(
        &mut self,
        drift: &Drift,
        seen: &mut Seen,
        wanted: &BTreeMap<Ipv4Addr, &Rule>,
    ) -> Result<(), DriverError> {
        match drift {
            Drift::Inert { .. } => bridge::enable(&mut self.netlink, (&self.name, self.bridge)).map(drop),
            Drift::Priority { port, .. } => {
                let index = seen.numbers.get(port).copied();
                let Some((index, lanes)) = index.zip(self.prepared.clone()) else { return Ok(()) };
                self.prepare_port(port, index, &lanes)
            }
            Drift::Missing { group } | Drift::Ports { group, .. } => {
                wanted.get(group).map_or(Ok(()), |rule| self.install_on(seen, rule, Former::Goes))
            }
            Drift::Extra { group } => {
                let all = seen.entries.remove(group).unwrap_or_default();
                self.take_away(seen, all, &format!("group {group}")).map_or(Ok(()), Err)
            }
            Drift::Meter { .. } => Ok(()),
        }
    }

    fn prepare_port(&mut self, port: &str, index: u32, lanes: &Lanes) -> Result<(), DriverError> {
        if let Some(before) = queue::prepare(&mut self.netlink, (port, index), lanes)? {
            // Keeps the first: a state that a later repair finds in its place was not set on purpose.
            self.queues_before.entry(port.to_owned()).or_insert(before);
        }
        Ok(())
    }

    fn remove_entries(&mut self, doomed: impl Fn(Ipv4Addr) -> bool) -> Result<(), DriverError> {
        let names = names(self.links()?);
        for entry in self.entries()?.into_iter().filter(|e| doomed(e.group)) {
            let port = names.get(&entry.port).cloned().unwrap_or_else(|| entry.port.to_string());
            self.apply(entry, false, (&format!("group {}", entry.group), &port))?;
        }
        Ok(())
    }
}

/// The switch's state when it was read, updated with every change.
struct Seen {
    names: BTreeMap<u32, String>,
    numbers: BTreeMap<String, u32>,
    /// Entries in range.
    entries: BTreeMap<Ipv4Addr, Vec<Entry>>,
}

impl Seen {
    fn new(links: Vec<Link>, all: Vec<Entry>) -> Seen {
        let names = names(links);
        let numbers = names.iter().map(|(number, name)| (name.clone(), *number)).collect();
        let mut entries: BTreeMap<Ipv4Addr, Vec<Entry>> = BTreeMap::new();
        for entry in all {
            entries.entry(entry.group).or_default().push(entry);
        }
        Seen { names, numbers, entries }
    }

    fn name(&self, port: u32) -> String {
        self.names.get(&port).cloned().unwrap_or_else(|| format!("#{port}"))
    }

    fn table(&self) -> Table {
        let groups = self.entries.iter().filter(|(_, entries)| !entries.is_empty());
        groups.map(|(group, _)| (*group, self.ports_of(*group))).collect()
    }

    /// Ports of a group by name. A learned port forwards for now and will time out, so it does not count as
    /// the requested port.
    fn ports_of(&self, group: Ipv4Addr) -> BTreeSet<String> {
        let name =
            |entry: &Entry| format!("{}{}", self.name(entry.port), if entry.permanent { "" } else { " (learned)" });
        self.entries.get(&group).into_iter().flatten().map(name).collect()
    }

    fn put(&mut self, entry: Entry) {
        let entries = self.entries.entry(entry.group).or_default();
        entries.retain(|other| other.port != entry.port);
        entries.push(entry);
    }

    /// Takes out the entries at ports that the rule does not name.
    fn take_others(&mut self, rule: &Rule) -> Vec<Entry> {
        let Some(entries) = self.entries.get_mut(&rule.group) else { return Vec::new() };
        let names = &self.names;
        let is_named = |entry: &Entry| names.get(&entry.port).is_some_and(|name| rule.ports.contains(name));
        entries.extract_if(.., |entry| !is_named(entry)).collect()
    }

    fn no_port(&self, rule: &Rule, port: &str) -> DriverError {
        DriverError::no_port(rule, port, &self.numbers)
    }
}

fn names(links: Vec<Link>) -> BTreeMap<u32, String> {
    links.into_iter().map(|link| (link.index, link.state.name)).collect()
}

impl Driver for Linux {
    fn describe(&self) -> String {
        let place = self.netns.as_ref().map_or(String::new(), |n| format!(" in {}", n.display()));
        format!("bridge {}{place}", self.name)
    }

    fn ports(&mut self) -> Result<Vec<PortState>, DriverError> {
        let mut ports: Vec<_> = self.links()?.into_iter().map(|l| l.state).collect();
        ports.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(ports)
    }

    fn egress(&mut self) -> Result<BTreeMap<String, Egress>, DriverError> {
        let links = self.links()?;
        links.iter().map(|l| Ok((l.state.name.clone(), queue::egress(&mut self.netlink, l)?))).collect()
    }

    fn prepare(&mut self, lanes: &Lanes) -> Result<(), DriverError> {
        lanes.check()?;
        let before = bridge::enable(&mut self.netlink, (&self.name, self.bridge))?;
        if self.snooping_before.is_none() {
            self.snooping_before = Some(before);
        }
        for link in self.links()? {
            self.prepare_port(&link.state.name, link.index, lanes)?;
        }
        self.prepared = Some(lanes.clone());
        Ok(())
    }

    fn install(&mut self, rules: &[Rule]) -> Result<Installed, DriverError> {
        self.range.check(rules.iter().map(|r| &r.group))?;
        let mut seen = Seen::new(self.links()?, self.entries()?);
        let mut refused = Vec::new();
        for rule in plan::by_group(rules).into_values() {
            if let Err(why) = self.install_on(&mut seen, rule, Former::Stays) {
                refused.push((rule.group, why));
            }
        }
        Ok(Installed { refused })
    }

    fn remove(&mut self, groups: &[Ipv4Addr]) -> Result<(), DriverError> {
        self.range.check(groups)?;
        self.remove_entries(|g| groups.contains(&g))
    }

    fn audit(&mut self, wanted: &[Rule]) -> Result<Vec<Drift>, DriverError> {
        Ok(self.look(wanted)?.1)
    }

    fn repair(&mut self, wanted: &[Rule]) -> Result<Repaired, DriverError> {
        let (mut seen, found) = self.look(wanted)?;
        let rules = plan::by_group(wanted);
        // Only the differences that were found: repairing later ones would leave them unreported.
        let mut refused = Vec::new();
        for drift in &found {
            if let Err(why) = self.put_right(drift, &mut seen, &rules) {
                refused.push((drift.clone(), why));
            }
        }
        Ok(Repaired::new(found, refused, plan::drift(&seen.table(), wanted)))
    }

    fn meter(&mut self, group: Ipv4Addr, rate: Option<Rate>) -> Result<(), DriverError> {
        self.range.check(&[group])?;
        if rate.is_none() {
            return Ok(());
        }
        Err(DriverError::Unsupported {
            what: format!("a limit for group {group}"),
            why: "a bridge counts no packets of a group; limit its sender, or use an OpenFlow switch with meters"
                .into(),
        })
    }

    fn watch(&mut self) -> Result<Watch, DriverError> {
        Watch::open(self.netns.as_deref(), Ports::OfBridge(self.bridge))
    }

    fn restore(&mut self) -> Result<(), DriverError> {
        self.remove_entries(|_| true)?;
        for link in self.links()? {
            let before = self.queues_before.get(&link.state.name);
            queue::restore(&mut self.netlink, (&link.state.name, link.index), before)?;
            self.queues_before.remove(&link.state.name);
        }
        if let Some(before) = self.snooping_before.take() {
            bridge::set_back(&mut self.netlink, (&self.name, self.bridge), before)?;
        }
        self.prepared = None;
        Ok(())
    }
}
