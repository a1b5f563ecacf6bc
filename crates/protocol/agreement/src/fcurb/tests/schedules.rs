// SPDX-License-Identifier: Apache-2.0
//! Any schedule: senders broadcast as soon as they may, heartbeats may reach only some members, links lose,
//! repeat and reorder.

use std::collections::{BTreeMap, BTreeSet};

use fide_types::host_index;
use proptest::{prelude::*, test_runner::TestCaseError};

use super::{group, hand};
use crate::{
    HostSet,
    fcurb::{Delivery, Fcurb},
    message::Message,
};

type Checked = Result<(), TestCaseError>;

/// What a member has delivered: a message of a sender, or its crash (0).
type Log = Vec<(u16, u64)>;

struct World {
    members: Vec<Fcurb>,
    numbers: Vec<u64>,
    dead: BTreeSet<u16>,
    /// Sender, receiver, bytes.
    network: Vec<(u16, u16, Vec<u8>)>,
    /// Crashes that are to be reported: the survivor, and the crashed member.
    notices: Vec<(u16, u16)>,
    logs: Vec<Log>,
    /// By message: the crashes that its sender had delivered before.
    after: BTreeMap<(u16, u64), Log>,
}

impl World {
    fn new(count: u16) -> Self {
        Self {
            members: group(count),
            numbers: vec![0; count.into()],
            dead: BTreeSet::new(),
            network: Vec::new(),
            notices: Vec::new(),
            logs: vec![Vec::new(); count.into()],
            after: BTreeMap::new(),
        }
    }

    fn alive(&self) -> Vec<u16> {
        (1..=self.members.len() as u16).filter(|member| !self.dead.contains(member)).collect()
    }

    /// Polls a member after a call; the first `until` copies of its messages leave.
    fn drain(&mut self, member: u16, until: usize) -> Checked {
        let at = host_index(member);
        let (node, others) = (&mut self.members[at], HostSet::first(self.logs.len()));
        let mut sent = Vec::new();
        let mut send = |to: HostSet, message: Message<'_>| {
            let mut bytes = Vec::new();
            message.write(&mut bytes);
            sent.extend(to.iter().filter(|to| *to != member).map(|to| (member, to, bytes.clone())));
        };
        loop {
            let delivered = match node.poll() {
                // The value names the message's sender.
                Some(Delivery::Message { number, value }) => {
                    prop_assert_eq!(u64::from(value[1]), number);
                    Some((value[0].into(), number))
                }
                Some(Delivery::Crashed(of)) => Some((of, 0)),
                None => None,
            };
            self.logs[at].extend(delivered);
            let mut is_over = delivered.is_none();
            while let Some((to, message)) = node.poll_transmit() {
                send(to, message);
                is_over = false;
            }
            if let Some(message) = node.poll_broadcast() {
                send(others, message);
                is_over = false;
            }
            if is_over {
                break;
            }
        }
        sent.truncate(until);
        self.network.extend(sent);
        Ok(())
    }

    fn broadcast(&mut self, member: u16) {
        let at = host_index(member);
        if !self.members[at].is_sending() {
            self.numbers[at] += 1;
            let number = self.numbers[at];
            let crashes = self.logs[at].iter().copied().filter(|(_, number)| *number == 0).collect();
            self.after.insert((member, number), crashes);
            self.members[at].broadcast(number, |value| value.extend([member as u8, number as u8]));
        }
    }

    fn receive(&mut self, which: usize) -> Checked {
        let (from, to, bytes) = self.network.swap_remove(which % self.network.len());
        if self.dead.contains(&to) {
            return Ok(());
        }
        let (message, node) = (Message::read(&bytes).unwrap(), &mut self.members[host_index(to)]);
        if let Message::Decide { instance, round, .. } = message {
            node.note_successor(round, instance);
            self.drain(to, usize::MAX)?;
        }
        hand(&mut self.members[host_index(to)], from, &message);
        self.drain(to, usize::MAX)
    }

    fn notice(&mut self, which: usize) -> Checked {
        let (survivor, dead) = self.notices.swap_remove(which % self.notices.len());
        if self.dead.contains(&survivor) {
            return Ok(());
        }
        self.members[host_index(survivor)].crashed(dead);
        self.drain(survivor, usize::MAX)
    }

    fn step(&mut self, what: u8, which: u16) -> Checked {
        let (alive, which) = (self.alive(), usize::from(which));
        let member = alive[which % alive.len()];
        match what {
            0..15 => {
                self.broadcast(member);
                self.drain(member, usize::MAX)?;
            }
            15..75 if !self.network.is_empty() => self.receive(which)?,
            75..82 if !self.notices.is_empty() => self.notice(which)?,
            // In the middle of its heartbeat.
            82..85 if alive.len() > 1 => {
                self.broadcast(member);
                self.drain(member, which / 7 % 5)?;
                self.dead.insert(member);
                self.notices.extend(self.alive().into_iter().map(|survivor| (survivor, member)));
            }
            85..90 => {
                self.members[host_index(member)].resend();
                self.drain(member, usize::MAX)?;
            }
            90..95 if !self.network.is_empty() => {
                self.network.push(self.network[which % self.network.len()].clone());
            }
            95.. if !self.network.is_empty() => drop(self.network.swap_remove(which % self.network.len())),
            _ => {}
        }
        Ok(())
    }

    fn run(&mut self, steps: Vec<(u8, u16)>) -> Checked {
        for (what, which) in steps {
            self.step(what, which)?;
            self.check()?;
        }
        Ok(())
    }

    /// Everything under way arrives; nothing is resent.
    fn arrives(&mut self) -> Checked {
        while !self.network.is_empty() || !self.notices.is_empty() {
            if !self.notices.is_empty() {
                self.notice(0)?;
            }
            if !self.network.is_empty() {
                self.receive(0)?;
            }
        }
        Ok(())
    }

    /// Everything that is sent arrives, and unanswered messages are resent.
    fn calm(&mut self) -> Checked {
        for _ in 0..12 {
            self.arrives()?;
            for member in self.alive() {
                self.members[host_index(member)].resend();
                self.drain(member, usize::MAX)?;
            }
        }
        prop_assert!(self.network.is_empty(), "it does not come to rest");
        Ok(())
    }

    fn check_end(&self) -> Checked {
        self.check()?;
        self.check_quiet()
    }

    /// The properties of FCURB on which HUC relies (FiDe App. A.4), for all members including dead ones.
    fn check(&self) -> Checked {
        for log in &self.logs {
            for (at, event) in log.iter().enumerate() {
                prop_assert!(!log[..at].iter().any(|(of, number)| (*of, *number) == *event), "twice: {log:?}");
                prop_assert!(!log[..at].contains(&(event.0, 0)), "after the crash of {}: {log:?}", event.0);
                let after = self.after.get(event).into_iter().flatten();
                for crash in after {
                    prop_assert!(log[..at].contains(crash), "before the crash that its sender knew of: {log:?}");
                }
                let before = log[..at].iter().filter(|(of, _)| *of == event.0).count() as u64;
                prop_assert!(event.1 == 0 || event.1 == before + 1, "out of order: {log:?}");
            }
        }
        for event in self.logs.iter().flatten().filter(|(_, number)| *number > 0) {
            for log in self.logs.iter().filter(|log| log.contains(&(event.0, 0))) {
                prop_assert!(log.contains(event), "goes on without {event:?}: {log:?}");
            }
        }
        Ok(())
    }

    fn check_quiet(&self) -> Checked {
        let set = |member: u16| self.logs[host_index(member)].iter().copied().collect::<BTreeSet<_>>();
        for member in self.alive() {
            prop_assert_eq!(set(member), set(self.alive()[0]));
            prop_assert!(self.dead.iter().all(|dead| set(member).contains(&(*dead, 0))));
            prop_assert!(!self.members[host_index(member)].is_sending());
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn members_deliver_all_or_none_before_the_crash(
        members in 2u16..=5, steps in prop::collection::vec((0u8..100, any::<u16>()), 0..300),
    ) {
        let mut world = World::new(members);
        world.run(steps)?;
        world.calm()?;
        world.check_end()?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// Two members die at once while many messages are under way, and the others hear of the deaths in any
    /// order.
    #[test]
    fn two_deaths_at_once(
        members in 4u16..=5,
        steps in prop::collection::vec((0u8..76, any::<u16>()), 20..120),
        which in any::<[u16; 2]>(),
        later in prop::collection::vec((15u8..100, any::<u16>()), 0..120),
    ) {
        let mut world = World::new(members);
        world.run(steps)?;
        world.run(which.map(|which| (82, which)).into())?;
        world.run(later.into_iter().map(|(what, which)| (if (82..85).contains(&what) { 75 } else { what }, which)).collect())?;
        world.calm()?;
        world.check_end()?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// Links reorder but lose no message of a live member.
    #[test]
    fn lossless_links_need_no_resend(
        members in 2u16..=5, steps in prop::collection::vec((0u8..85, any::<u16>()), 0..300),
    ) {
        let mut world = World::new(members);
        world.run(steps)?;
        world.arrives()?;
        world.check_end()?;
    }
}
