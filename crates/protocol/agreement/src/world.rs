// SPDX-License-Identifier: Apache-2.0
//! For tests: members, the messages between them, and the steps of a schedule. A heartbeat may reach only
//! some members.

use std::collections::{BTreeMap, BTreeSet};

use proptest::test_runner::TestCaseError;

use crate::{Decision, HostSet, Message, Start, batch};

type Checked = Result<(), TestCaseError>;

pub(crate) struct World<P> {
    members: BTreeMap<u16, P>,
    dead: BTreeSet<u16>,
    /// Sender, receiver, bytes. Messages of live senders are never lost.
    pub(crate) network: Vec<(u16, u16, Vec<u8>)>,
    /// Crashes that are to be reported: the survivor, and the crashed member.
    notices: Vec<(u16, u16)>,
    logs: BTreeMap<u16, Vec<(u64, Vec<u8>)>>,
    /// The proposer of each value. Values are numbers, each used once.
    proposed: BTreeMap<Vec<u8>, u16>,
}

impl<P: Start> World<P> {
    pub(crate) fn new(members: usize, setting: &P::Setting) -> Self {
        let of = |me| P::start(setting, me, HostSet::first(members)).expect("a member");
        let ids = 1..=u16::try_from(members).expect("few");
        let mut world = Self {
            members: ids.clone().map(|me| (me, of(me))).collect(),
            dead: BTreeSet::new(),
            network: Vec::new(),
            notices: Vec::new(),
            logs: ids.clone().map(|me| (me, Vec::new())).collect(),
            proposed: BTreeMap::new(),
        };
        // Some members send a message at once: that they have nothing to say.
        ids.for_each(|me| world.drain(me, usize::MAX));
        world
    }

    pub(crate) fn log(&self, member: u16) -> &Vec<(u64, Vec<u8>)> {
        &self.logs[&member]
    }

    fn alive(&self) -> Vec<u16> {
        self.members.keys().copied().filter(|member| !self.dead.contains(member)).collect()
    }

    /// Polls a member after a call: decisions, then messages, of which only the first `until` copies leave.
    fn drain(&mut self, member: u16, until: usize) {
        let others: HostSet = self.members.keys().copied().filter(|other| *other != member).collect();
        let node = self.members.get_mut(&member).expect("a member");
        let mut copies = 0;
        loop {
            let mut anything = false;
            while let Some(Decision { instance, value }) = node.poll_decision() {
                self.logs.get_mut(&member).expect("a log").push((instance, value.to_vec()));
                anything = true;
            }
            let mut send = |to: HostSet, message: Message<'_>| {
                anything = true;
                for receiver in to.iter() {
                    copies += 1;
                    if copies <= until {
                        let mut bytes = Vec::new();
                        message.write(&mut bytes);
                        self.network.push((member, receiver, bytes));
                    }
                }
            };
            while let Some((to, message)) = node.poll_transmit() {
                send(to, message);
            }
            if let Some(message) = node.poll_broadcast() {
                send(others, message);
            }
            if !anything {
                return;
            }
        }
    }

    pub(crate) fn propose(&mut self, member: u16) {
        let value = (self.proposed.len() as u32 + 1).to_le_bytes().to_vec();
        let node = self.members.get_mut(&member).expect("a member");
        if !self.dead.contains(&member) && node.propose(&value).is_ok() {
            self.proposed.insert(value, member);
            self.drain(member, usize::MAX);
        }
    }

    pub(crate) fn deliver(&mut self, from: u16, to: u16, bytes: &[u8]) {
        if !self.dead.contains(&to) {
            let message = Message::read(bytes).expect("a message");
            let node = self.members.get_mut(&to).expect("a member");
            node.receive(from, &message).expect("members send what members take");
            self.drain(to, usize::MAX);
        }
    }

    /// A member crashes after it has handled one more message, and sent only the first copies of what
    /// follows.
    pub(crate) fn crash(&mut self, member: u16, copies: usize) {
        if self.dead.contains(&member) || self.alive().len() == 1 {
            return;
        }
        if copies > 0 {
            if let Some(at) = self.network.iter().position(|(_, to, _)| *to == member) {
                let (from, _, bytes) = self.network.remove(at);
                let message = Message::read(&bytes).expect("a message");
                let node = self.members.get_mut(&member).expect("a member");
                node.receive(from, &message).expect("members send what members take");
            }
            self.drain(member, copies - 1);
        }
        self.dead.insert(member);
        self.notices.extend(self.alive().into_iter().map(|survivor| (survivor, member)));
    }

    /// Reports one crash to one survivor.
    pub(crate) fn notice(&mut self, which: usize) -> bool {
        if self.notices.is_empty() {
            return false;
        }
        let (survivor, dead) = self.notices.remove(which % self.notices.len());
        if !self.dead.contains(&survivor) {
            self.members.get_mut(&survivor).expect("a member").crashed(dead);
            self.drain(survivor, usize::MAX);
        }
        true
    }

    fn deliver_any(&mut self, which: usize) {
        if !self.network.is_empty() {
            let (from, to, bytes) = self.network.swap_remove(which % self.network.len());
            self.deliver(from, to, &bytes);
        }
    }

    pub(crate) fn step(&mut self, what: u8, which: u16) {
        let (alive, index) = (self.alive(), usize::from(which));
        match what {
            0..20 => self.propose(alive[index % alive.len()]),
            20..80 => self.deliver_any(index),
            80..90 => {
                self.notice(index);
            }
            90..95 => self.crash(alive[index % alive.len()], index / 7 % 8),
            100..115 => self.resend(alive[index % alive.len()]),
            115..130 if !self.network.is_empty() => {
                let again = self.network[index % self.network.len()].clone();
                self.network.push(again);
            }
            130.. if !self.network.is_empty() => drop(self.network.swap_remove(index % self.network.len())),
            // Messages of dead members may be lost.
            _ => {
                let dead: Vec<usize> =
                    (0..self.network.len()).filter(|at| self.dead.contains(&self.network[*at].0)).collect();
                if !dead.is_empty() {
                    self.network.swap_remove(dead[index % dead.len()]);
                }
            }
        }
    }

    fn resend(&mut self, member: u16) {
        self.members.get_mut(&member).expect("a member").resend();
        self.drain(member, usize::MAX);
    }

    /// Runs a schedule, then lets everything settle; checks after each step.
    pub(crate) fn follow(mut self, steps: &[(u8, u16)]) -> Checked {
        for (what, which) in steps {
            self.step(*what, *which);
            self.check()?;
        }
        self.calm();
        self.check()?;
        self.check_quiet()
    }

    /// Everything under way arrives, and is resent until nothing is missing.
    pub(crate) fn calm(&mut self) {
        let mut quiet = 0;
        while quiet < 3 {
            while self.notice(0) || !self.network.is_empty() {
                self.deliver_any(0);
            }
            self.alive().into_iter().for_each(|member| self.resend(member));
            quiet = if self.network.is_empty() { quiet + 1 } else { 0 };
        }
    }

    /// Everything under way arrives; nothing is resent.
    pub(crate) fn arrives(&mut self) {
        while self.notice(0) || !self.network.is_empty() {
            self.deliver_any(0);
        }
    }

    pub(crate) fn check(&self) -> Checked {
        let longest = self.logs.values().max_by_key(|log| log.len()).expect("members");
        for (member, log) in &self.logs {
            // Uniform agreement: it holds for crashed members too.
            if !longest.starts_with(log) {
                return Err(TestCaseError::fail(format!("{member} has {log:?}, another has {longest:?}")));
            }
        }
        let mut seen = BTreeSet::new();
        for (at, (instance, value)) in longest.iter().enumerate() {
            if *instance != at as u64 + 1 {
                return Err(TestCaseError::fail(format!("instance {instance} at {at}")));
            }
            for value in batch::values(value) {
                if !self.proposed.contains_key(value) || !seen.insert(value.to_vec()) {
                    return Err(TestCaseError::fail(format!("{value:?} was never proposed, or decided twice")));
                }
            }
        }
        Ok(())
    }

    /// Termination: all live members have decided everything that a live member has proposed.
    pub(crate) fn check_quiet(&self) -> Checked {
        let alive = self.alive();
        let log = self.log(alive[0]);
        let decided: BTreeSet<&[u8]> = log.iter().flat_map(|(_, value)| batch::values(value)).collect();
        for member in &alive {
            if self.log(*member) != log {
                return Err(TestCaseError::fail(format!(
                    "{member} has {:?}, {} has {log:?}",
                    self.log(*member),
                    alive[0]
                )));
            }
        }
        for (value, by) in &self.proposed {
            if alive.contains(by) && !decided.contains(value.as_slice()) {
                return Err(TestCaseError::fail(format!("{value:?} of {by} was not decided: {log:?}")));
            }
        }
        Ok(())
    }
}
