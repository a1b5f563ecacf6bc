// SPDX-License-Identifier: Apache-2.0
//! The thread of one switch.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Instant;

use fide_switch::{Drift, Driver, DriverError, Repaired, Rule};
use fide_types::Time;

use super::carriers::{Carriers, Post};
use super::mailbox::{Mail, Mailbox, Wake};
use super::{DRIFTS_MAX, EVENTS_MAX, GROUPS_MAX, Pace, SwitchSpec, TELL_PAUSE};
use crate::core::Event;
use crate::leader::{Authority, Leadership};
use crate::shell::{EventSender, Refused};

/// Failures in a row after which the switch is opened anew: it may be a different one by now.
pub(super) const REOPEN_FAILURES: u32 = 8;

/// Groups and their ports.
type Table = BTreeMap<Ipv4Addr, BTreeSet<String>>;

pub(super) struct Worker {
    spec: SwitchSpec,
    mailbox: Arc<Mailbox>,
    event_sender: EventSender<Event>,
    leadership: Arc<dyn Leadership + Send + Sync>,
    carriers: Arc<Carriers>,
    pace: Pace,
    driver: Option<Box<dyn Driver>>,
    /// The groups that the switch should have; none before the first order of a leadership.
    wanted: Option<Table>,
    /// Number of the newest order.
    number: u64,
    /// The switch was read once since everything was ordered anew: from now on differences come from
    /// outside.
    read: bool,
    /// Why the switch may differ from `wanted`, as last logged.
    trouble: Option<String>,
    /// Failures in a row of opening or reading the switch.
    failures: u32,
    /// Differences that a failed repair left; they are not reported again.
    left: HashSet<Drift>,
    /// Groups with an order that was not carried out: their differences come from this controller.
    undone: BTreeSet<Ipv4Addr>,
    /// An error was reported, so its end has to be reported too.
    owes_end: bool,
    outbox: VecDeque<Event>,
    /// When the switch is checked next.
    due: Instant,
}

impl Worker {
    pub(super) fn new(
        spec: SwitchSpec,
        mailbox: Arc<Mailbox>,
        event_sender: EventSender<Event>,
        leadership: Arc<dyn Leadership + Send + Sync>,
        carriers: Arc<Carriers>,
        pace: Pace,
    ) -> Worker {
        Worker {
            spec,
            mailbox,
            event_sender,
            leadership,
            carriers,
            pace,
            driver: None,
            wanted: None,
            number: 0,
            read: false,
            trouble: None,
            failures: 0,
            left: HashSet::new(),
            undone: BTreeSet::new(),
            owes_end: false,
            outbox: VecDeque::new(),
            due: Instant::now(),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.spec.name
    }

    pub(super) fn run(mut self) {
        // Opened before the first order comes; carriers are reported to begin with.
        if self.leads() {
            self.open();
        }
        loop {
            let leads = self.leads();
            let room = self.outbox.len() < EVENTS_MAX;
            let wait = if self.outbox.is_empty() { self.due } else { Instant::now() + TELL_PAUSE };
            // A controller that does not lead checks again whether it does.
            let wait = if leads { wait } else { wait.max(Instant::now() + self.pace.retry) };
            match self.mailbox.wait(wait, leads && room) {
                Wake::Stop { restore } => return self.end(restore),
                Wake::Rewatch => self.watch(),
                Wake::Mail if self.leads() => {
                    let mail = self.mailbox.take();
                    self.carry_out(mail);
                }
                Wake::Late if leads && room && Instant::now() >= self.due => self.look(),
                Wake::Mail | Wake::Late => {}
            }
            self.send_events();
        }
    }

    /// Whether the switch may be touched. After another controller has led, the switch is not compared with
    /// what this one wanted before.
    fn leads(&mut self) -> bool {
        match self.leadership.authority() {
            Authority::Leader { .. } => true,
            Authority::ReadOnly { .. } => false,
            Authority::Standby { .. } => {
                self.wanted = None;
                self.left.clear();
                self.undone.clear();
                self.trouble = None;
                self.owes_end = false;
                false
            }
        }
    }

    fn end(&mut self, restore: bool) {
        if !restore {
            return;
        }
        if self.driver.is_none() {
            self.open();
        }
        let done = self.driver.as_mut().map_or(Ok(()), |driver| driver.restore());
        match done {
            Ok(()) => tracing::info!("{}: given back as it was", self.spec.name),
            Err(error) => tracing::error!("{}: cannot be given back as it was: {error}", self.spec.name),
        }
    }

    fn open(&mut self) {
        let opened = (self.spec.open)().and_then(|mut driver| {
            driver.prepare(&self.spec.lanes)?;
            Ok(driver)
        });
        match opened {
            Ok(driver) => {
                tracing::info!("{}: {} is open", self.spec.name, driver.describe());
                self.driver = Some(driver);
                self.failures = 0;
                self.watch();
            }
            Err(error) => {
                self.failures += 1;
                self.failed(error.to_string());
            }
        }
    }

    /// Has the carriers' thread watch the ports from now on.
    fn watch(&mut self) {
        let Some(driver) = &mut self.driver else { return };
        // In this order, so that a change in between is in both.
        let watched = driver.watch().and_then(|watch| Ok((watch, driver.ports()?)));
        match watched {
            Ok((watch, ports)) => {
                let mut ports: BTreeMap<String, bool> = ports.into_iter().map(|p| (p.name, p.carrier)).collect();
                for port in &self.spec.ports {
                    if !ports.contains_key(port) {
                        tracing::warn!("{}: port {port} of the topology is not there", self.spec.name);
                        ports.insert(port.clone(), false);
                    }
                }
                let (switch, mailbox) = (self.spec.name.clone(), self.mailbox.clone());
                self.carriers.post(Post::Open { switch, watch: Box::new(watch), ports, mailbox });
            }
            Err(error) => {
                self.driver = None;
                self.failures += 1;
                self.failed(error.to_string());
            }
        }
    }

    /// Logs a failure, and tries again after a pause.
    fn failed(&mut self, why: String) {
        if self.trouble.as_ref() != Some(&why) {
            tracing::warn!("{}: {why}; it is tried again", self.spec.name);
        }
        self.trouble = Some(why);
        self.due = Instant::now() + self.pace.retry;
    }

    fn carry_out(&mut self, mail: Mail) {
        let begun = Instant::now();
        let Mail { anew, number, changes, refused } = mail;
        self.number = number;
        let mut failures: BTreeMap<u64, String> = refused
            .into_iter()
            .map(|number| (number, format!("it would have more than {GROUPS_MAX} groups")))
            .collect();
        if anew {
            self.wanted = Some(Table::new());
            self.read = false;
            // A new decider knows no carriers.
            self.carriers.post(Post::Again { switch: self.spec.name.clone() });
        }
        // Before the first order that is anew, the other groups are not known; a decider that resumes
        // orders them all.
        let Some(wanted) = &mut self.wanted else { return };
        let numbers: BTreeMap<Ipv4Addr, u64> = changes.iter().map(|(group, change)| (*group, change.number)).collect();
        let (mut install, mut remove) = (Vec::new(), Vec::new());
        for (group, change) in changes {
            match change.ports {
                Some(ports) => {
                    install.push(Rule { group, ports: ports.clone() });
                    wanted.insert(group, ports);
                }
                None => {
                    wanted.remove(&group);
                    remove.push(group);
                }
            }
        }
        if self.driver.is_none() {
            self.open();
        }
        if self.driver.is_none() {
            let why = self.trouble.clone().unwrap_or_default();
            failures.extend(install.iter().map(|rule| (numbers[&rule.group], why.clone())));
            if anew {
                failures.insert(number, why);
            }
            self.undone.extend(install.iter().map(|rule| rule.group).chain(remove));
            return self.answer(failures);
        }
        if anew {
            self.converge(&numbers, &mut failures);
        } else {
            let refused = self.install(&install, &numbers, &mut failures);
            self.is_as_ordered(install.iter().map(|rule| rule.group).filter(|group| !refused.contains(group)));
            self.undone.extend(refused);
        }
        let (name, took) = (&self.spec.name, Time::from(begun.elapsed()));
        tracing::debug!("{name}: {} groups installed, through order {number}, in {took}", install.len());
        self.answer(failures);
        // Removals are not waited for.
        if !anew && !remove.is_empty() {
            self.send_events();
            match self.driver.as_mut().map(|driver| driver.remove(&remove)) {
                Some(Err(error)) => {
                    self.undone.extend(remove);
                    self.failed(error.to_string());
                }
                _ => self.is_as_ordered(remove.into_iter()),
            }
        }
    }

    /// The switch has these groups as ordered: from now on their differences come from outside.
    fn is_as_ordered(&mut self, groups: impl Iterator<Item = Ipv4Addr>) {
        let groups: BTreeSet<Ipv4Addr> = groups.collect();
        self.undone.retain(|group| !groups.contains(group));
        self.left.retain(|drift| drift.group().is_none_or(|group| !groups.contains(&group)));
    }

    /// Installs rules. Returns the groups that were refused, and notes their orders with the switch's
    /// errors.
    fn install(
        &mut self,
        rules: &[Rule],
        numbers: &BTreeMap<Ipv4Addr, u64>,
        failures: &mut BTreeMap<u64, String>,
    ) -> BTreeSet<Ipv4Addr> {
        if rules.is_empty() {
            return BTreeSet::new();
        }
        let Some(driver) = self.driver.as_mut() else { return BTreeSet::new() };
        let refused: BTreeMap<Ipv4Addr, String> = match driver.install(rules) {
            Ok(installed) => installed.refused.into_iter().map(|(group, why)| (group, why.to_string())).collect(),
            Err(error) => rules.iter().map(|rule| (rule.group, error.to_string())).collect(),
        };
        if let Some(why) = refused.values().next() {
            self.failed(why.clone());
        }
        let groups = refused.keys().copied().collect();
        failures
            .extend(refused.into_iter().map(|(group, why)| (numbers.get(&group).copied().unwrap_or(self.number), why)));
        groups
    }

    /// Makes the switch have what is wanted and nothing else, as far as possible. Differences come from
    /// outside and are reported, unless the switch was never read before, or they were left the last time.
    /// Returns the groups whose rules are refused.
    fn converge(
        &mut self,
        numbers: &BTreeMap<Ipv4Addr, u64>,
        failures: &mut BTreeMap<u64, String>,
    ) -> BTreeSet<Ipv4Addr> {
        let (Some(driver), Some(wanted)) = (&mut self.driver, &self.wanted) else { return BTreeSet::new() };
        let rules: Vec<Rule> =
            wanted.iter().map(|(group, ports)| Rule { group: *group, ports: ports.clone() }).collect();
        let number = |group: &Ipv4Addr| numbers.get(group).copied().unwrap_or(self.number);
        let Repaired { found, mut refused, left } = match driver.repair(&rules) {
            Ok(repaired) => repaired,
            Err(error) => {
                failures.extend(rules.iter().map(|rule| (number(&rule.group), error.to_string())));
                failures.insert(self.number, error.to_string());
                self.failures += 1;
                self.failed(error.to_string());
                return BTreeSet::new();
            }
        };
        let groups = |(drift, why): &(Drift, DriverError)| drift.group().map(|group| (group, why.to_string()));
        let of_rules: BTreeMap<Ipv4Addr, String> =
            refused.iter().filter_map(groups).filter(|(group, _)| wanted.contains_key(group)).collect();
        failures.extend(of_rules.iter().map(|(group, why)| (number(group), why.clone())));
        self.differs(&found);
        (self.read, self.failures) = (true, 0);
        self.undone.clear();
        // A part of a refused rule may be installed. From now on, changes to it come from outside.
        self.left = left.into_iter().collect();
        match refused.pop() {
            Some((_, error)) => self.failed(error.to_string()),
            None => {
                self.trouble = None;
                self.due = Instant::now() + self.pace.audit;
            }
        }
        of_rules.into_keys().collect()
    }

    /// Reports the differences that are repaired, or should be.
    fn differs(&mut self, found: &[Drift]) {
        let is_undone = |drift: &Drift| drift.group().is_some_and(|group| self.undone.contains(&group));
        // A port or limit that is repaired in part may differ in other words.
        let others: Vec<&Drift> = self.left.iter().filter(|drift| drift.group().is_none()).collect();
        let is_left =
            |drift: &Drift| self.left.contains(drift) || others.iter().any(|other| other.is_at_the_same(drift));
        let is_new = |drift: &&Drift| !is_left(drift) && !is_undone(drift);
        let found: Vec<&Drift> = found.iter().filter(is_new).collect();
        if !self.read {
            if !found.is_empty() {
                tracing::info!("{}: {} differences from what was stored, put right", self.spec.name, found.len());
            }
            return;
        }
        let switch = &self.spec.name;
        let mut events: Vec<Event> = found
            .iter()
            .take(DRIFTS_MAX)
            .map(|drift| Event::Drift { switch: switch.clone(), what: drift.to_string() })
            .collect();
        if found.len() > DRIFTS_MAX {
            let what = format!("and {} more differences", found.len() - DRIFTS_MAX);
            events.push(Event::Drift { switch: switch.clone(), what });
        }
        self.outbox.extend(events);
    }

    /// Checks the switch while nothing is ordered.
    fn look(&mut self) {
        self.due = Instant::now() + self.pace.audit;
        if self.driver.is_none() || self.failures >= REOPEN_FAILURES {
            self.driver = None;
            self.open();
        }
        if self.driver.is_none() || self.wanted.is_none() {
            return;
        }
        let calm = self.trouble.is_none();
        let mut failures = BTreeMap::new();
        let before: BTreeSet<Ipv4Addr> =
            self.left.iter().filter_map(Drift::group).chain(self.undone.iter().copied()).collect();
        let refused = self.converge(&BTreeMap::new(), &mut failures);
        // Differences that were reported already are not reported again.
        if self.trouble.is_none() && self.owes_end {
            self.answer(BTreeMap::new());
        } else if !failures.is_empty() && (calm || !refused.is_subset(&before)) {
            // The switch has lost a rule that it had.
            self.answer(failures);
        }
    }

    /// Answers all orders so far; the ones in `failures` with the switch's error.
    fn answer(&mut self, failures: BTreeMap<u64, String>) {
        let applied = |number, error| Event::Applied { switch: self.spec.name.clone(), number, error };
        let last = failures.keys().next_back().copied();
        let mut events = Vec::new();
        for (number, why) in failures {
            // Earlier orders hold.
            events.push(applied(number.saturating_sub(1), None));
            events.push(applied(number, Some(why)));
        }
        if last != Some(self.number) {
            events.push(applied(self.number, None));
        }
        self.owes_end = last.is_some() || (self.owes_end && self.trouble.is_some());
        self.outbox.extend(events);
    }

    fn send_events(&mut self) {
        while let Some(event) = self.outbox.pop_front() {
            match self.event_sender.send(event.clone()) {
                Ok(()) => {}
                Err(Refused::Busy) => {
                    self.outbox.push_front(event);
                    return;
                }
                // The shell is gone, and with it the decisions that the events were for.
                Err(_) => self.outbox.clear(),
            }
        }
    }
}
