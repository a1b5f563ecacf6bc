// SPDX-License-Identifier: Apache-2.0
//! Clients of the counter: each asks the leader for one more, waits for the answer, and asks again. Who is not answered, as its leader
//! has died, asks the next leader the same.

use std::time::Instant;

use anyhow::bail;
use fide_counter::{Add, Order, Replicas, Reported};

/// All clients.
pub(super) struct Clients {
    /// By client: what it has asked last, and whether it waits for the answer.
    asked: Vec<(u32, bool)>,
    leader: Option<u16>,
    stopped: bool,
    pub(super) asked_again: u64,
    /// When so many were counted.
    pub(super) counted: Vec<(u64, u32)>,
}

impl Clients {
    pub(super) fn new(clients: u32) -> Self {
        Self {
            asked: vec![(0, false); clients as usize],
            leader: None,
            stopped: false,
            asked_again: 0,
            counted: Vec::new(),
        }
    }

    pub(super) fn answered(&self) -> u64 {
        self.asked.iter().map(|(count, waits)| u64::from(*count) - u64::from(*waits)).sum()
    }

    /// Nobody leads: nobody is asked.
    pub(super) fn leaderless(&mut self) {
        self.leader = None;
    }

    /// This host leads now: all that was not answered it is asked again.
    pub(super) fn led_by(&mut self, host: u16, replicas: &mut Replicas) -> anyhow::Result<()> {
        self.leader = Some(host);
        let mut add = Vec::new();
        for (client, (count, waits)) in (0..).zip(&mut self.asked) {
            if *waits {
                self.asked_again += 1;
            } else if !self.stopped {
                (*count, *waits) = (*count + 1, true);
            } else {
                continue;
            }
            add.push(Add { client, count: *count });
        }
        self.ask(add, replicas)
    }

    fn ask(&mut self, add: Vec<Add>, replicas: &mut Replicas) -> anyhow::Result<()> {
        let node = self.leader.and_then(|leader| replicas.node(leader));
        match node.filter(|_| !add.is_empty()) {
            Some(node) => node.order(&Order::Add { add }),
            None => Ok(()),
        }
    }

    /// Takes a line that a replica has reported.
    pub(super) fn take(&mut self, host: u16, reported: &Reported, replicas: &mut Replicas) -> anyhow::Result<()> {
        let Reported::Counted { counted, ns, .. } = reported else { return Ok(()) };
        let mut add = Vec::new();
        let mut fresh = 0;
        for done in counted {
            let Some((count, waits)) = self.asked.get_mut(done.client as usize) else { continue };
            if done.count != *count || !*waits {
                // Asked again and reported twice: it counts once.
                continue;
            }
            fresh += 1;
            *waits = false;
            if !self.stopped {
                (*count, *waits) = (*count + 1, true);
                add.push(Add { client: done.client, count: *count });
            }
        }
        self.counted.push((*ns, fresh));
        if self.leader == Some(host) { self.ask(add, replicas) } else { Ok(()) }
    }

    /// Serves them until then.
    pub(super) fn serve(&mut self, replicas: &mut Replicas, until: Instant) -> anyhow::Result<()> {
        while let Some((host, reported)) = replicas.poll(until) {
            if let (Reported::Leads { .. }, true) = (&reported, self.leader != Some(host)) {
                bail!("h{host} leads, while h{} was not killed", self.leader.unwrap_or(0));
            }
            self.take(host, &reported, replicas)?;
        }
        Ok(())
    }

    /// They ask no more; all that was asked has to be answered.
    pub(super) fn stop(&mut self, replicas: &mut Replicas, until: Instant) -> anyhow::Result<()> {
        self.stopped = true;
        while self.asked.iter().any(|(_, waits)| *waits) {
            let Some((host, reported)) = replicas.poll(until) else { bail!("requests were never answered") };
            self.take(host, &reported, replicas)?;
        }
        Ok(())
    }
}
