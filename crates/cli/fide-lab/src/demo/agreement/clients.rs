// SPDX-License-Identifier: Apache-2.0
//! Clients of the counter: each requests an increment from the leader, waits for the answer, and sends the
//! next request. A client without an answer, because its leader has died, sends the same request to the next
//! leader.

use std::time::Instant;

use anyhow::bail;
use fide_counter::{Add, Order, Replicas, Reported};

/// All clients.
pub(super) struct Clients {
    /// By client: its last request, and whether it waits for the answer.
    asked: Vec<(u32, bool)>,
    leader: Option<u16>,
    stopped: bool,
    pub(super) asked_again: u64,
    /// When requests were counted (CLOCK_MONOTONIC ns), and how many at that time.
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

    /// There is no leader: nothing is sent.
    pub(super) fn leaderless(&mut self) {
        self.leader = None;
    }

    /// This host leads now: unanswered requests are sent to it again.
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
                // Sent again and reported twice: it counts once.
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

    /// Serves the clients until the time `until`.
    pub(super) fn serve(&mut self, replicas: &mut Replicas, until: Instant) -> anyhow::Result<()> {
        while let Some((host, reported)) = replicas.poll(until) {
            if let (Reported::Leads { .. }, true) = (&reported, self.leader != Some(host)) {
                bail!("h{host} leads, while h{} was not killed", self.leader.unwrap_or(0));
            }
            self.take(host, &reported, replicas)?;
        }
        Ok(())
    }

    /// The clients send no more requests, and wait for all answers.
    pub(super) fn stop(&mut self, replicas: &mut Replicas, until: Instant) -> anyhow::Result<()> {
        self.stopped = true;
        while self.asked.iter().any(|(_, waits)| *waits) {
            let Some((host, reported)) = replicas.poll(until) else { bail!("requests were never answered") };
            self.take(host, &reported, replicas)?;
        }
        Ok(())
    }
}
