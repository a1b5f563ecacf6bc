// SPDX-License-Identifier: Apache-2.0
//! Members: their turns, their users, and the decisions and events that reach them.

use std::fmt;

use fide_agreement::{Entry, Standing, View, group::entries};
use fide_group::{core::EVENTS_PER_TURN, packet::Sender};
use fide_sys::clock::Clocks;
use rand::RngExt;

use super::{
    super::{
        check::{Checked, Violation, leased, number, one_leader, violated},
        host::{Host, Record, Voice},
        plan::MS,
        protocol::Protocol,
        state::{PAYLOAD_MAX_BYTES, State},
    },
    Next, SOON_NS, WAKE_NS, World, may_send,
};

/// Payloads that may be proposed once more.
const PAYLOADS_MAX: usize = 8;

impl<P: Protocol> World<'_, P> {
    /// Wakes the member, because something waits for it.
    pub(super) fn wake_seat(&mut self, at: usize) {
        let Some(seat) = &mut self.hosts[at].seat else { return };
        if seat.turn_ns <= self.now_ns + WAKE_NS {
            return;
        }
        let turn_ns = (self.now_ns + self.network.random.random_range(1..WAKE_NS)).max(seat.paused_until_ns);
        if seat.turn_ns > turn_ns {
            seat.turn_ns = turn_ns;
            self.network.push(turn_ns, Next::Seat(at));
        }
    }

    pub(super) fn plan_seat(&mut self, at: usize, turn_ns: u64) {
        if let Some(seat) = &mut self.hosts[at].seat {
            seat.turn_ns = turn_ns.max(seat.paused_until_ns);
            self.network.push(seat.turn_ns, Next::Seat(at));
        }
    }

    /// The member tries to join with its host's agent.
    pub(super) fn open_seat(&mut self, at: usize, now: &Clocks) {
        let host = &mut self.hosts[at];
        let Some(seat) = &mut host.seat else { return };
        let opened = seat.open(now.raw_ns, host.agent.as_mut());
        let timer_ns = host.clock.true_ns(seat.client.timer_ns);
        if opened {
            let (key, process) = ((host.id, seat.sender.incarnation), seat.sender.process);
            self.processes.insert(key, process);
        }
        self.call_agent(at);
        let turn_ns = if opened { self.now_ns } else { timer_ns };
        self.plan_seat(at, turn_ns.max(self.now_ns + SOON_NS));
    }

    /// The member takes the packets and events that wait for it. False if its process ended because that failed.
    pub(super) fn take_input(&mut self, at: usize, now: &Clocks) -> Result<bool, Violation> {
        let host = &mut self.hosts[at];
        let is_astray = host.is_astray();
        let Some(seat) = &mut host.seat else { return Ok(false) };
        let waiting = seat.client.waiting();
        let left = seat.after(now, host.agent.as_mut());
        seat.waited = true;
        if waiting > EVENTS_PER_TURN {
            self.stats.runs_behind = 1;
        }
        let pid = seat.pid;
        self.stats.deliveries += left.datagrams;
        for packet in left.taken {
            self.network.give_back(packet.bytes);
        }
        self.stats.events_at_once = self.stats.events_at_once.max(left.events.len() as u64);
        for event in &left.events {
            self.stats.broadcasts += u64::from(matches!(event, fide_client::Event::Piggyback { .. }));
            if matches!(event, fide_client::Event::Lost { .. }) {
                self.stats.runs_with_lost_events = 1;
            }
            self.note_event(at, event);
            self.deaths.notified(pid, event, is_astray)?;
        }
        if left.failed {
            self.end_seat(at);
        }
        Ok(!left.failed)
    }

    /// The user is done: the member sends what follows, and waits again.
    pub(super) fn finish(&mut self, at: usize) -> Checked {
        let host = &mut self.hosts[at];
        let now = host.clock.read(self.now_ns);
        let Some(seat) = &mut host.seat else { return Ok(()) };
        seat.waited = false;
        seat.before(&now, host.agent.as_mut());
        self.note_founding(at)?;
        let Some(seat) = &mut self.hosts[at].seat else { return Ok(()) };
        let due_ns = seat.due_ns();
        let standing = seat.standing();
        seat.held |= standing == Standing::Member;
        if seat.ends_ns == u64::MAX && standing == Standing::Removed {
            // A removed member goes on serving members that have not heard of its removal, for a while.
            seat.ends_ns = self.now_ns + 10 * MS;
            self.stats.removals += 1;
        }
        let ends_ns = seat.ends_ns;
        if !self.send_out(at) {
            return Ok(());
        }
        self.call_agent(at);
        let host = &self.hosts[at];
        let Some(seat) = &host.seat else { return Ok(()) };
        let mut turn_ns = host.clock.true_ns(due_ns).min(ends_ns).max(self.now_ns + SOON_NS);
        if seat.is_called(now.raw_ns) {
            turn_ns = self.now_ns + SOON_NS;
        }
        self.plan_seat(at, turn_ns);
        if self.torn { Ok(()) } else { one_leader(&self.hosts, at, self.now_ns) }
    }

    /// Checks the view with which a member has founded the group again.
    pub(super) fn note_founding(&mut self, at: usize) -> Checked {
        let host = &mut self.hosts[at];
        let is_astray = host.is_astray();
        let Some(seat) = &mut host.seat else { return Ok(()) };
        // A view that is not on disk is over with its founder, and may be founded once more.
        let is_stored = |view: &View| self.plan.durable.is_none() || host.store.has_begun(view);
        let Some(view) = seat.found_again(is_stored) else { return Ok(()) };
        let (id, forgets) = (host.id, seat.is_copy || is_astray);
        if forgets {
            self.tear();
        }
        if !self.torn && self.plan.durable.is_some() {
            self.views.founded_from_disk(&view)?;
        } else if !self.torn {
            self.views.delivered(&view)?;
        }
        self.note(|_| format!("h{id} founds the group again, with {view:?}"));
        self.stats.founded_again += 1;
        Ok(())
    }

    /// A member that was excluded asks to be let in again.
    pub(super) fn rejoin(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        let now = host.clock.read(self.now_ns);
        let Some(seat) = &mut host.seat else { return };
        if !seat.rejoin(&now, host.agent.as_mut(), &mut host.record) {
            return;
        }
        let Sender { host: id, process, incarnation } = seat.sender;
        self.processes.insert((id, incarnation), process);
        self.stats.rejoins += 1;
        self.note(|_| format!("the member of h{id} goes on as incarnation {incarnation}, process {process}"));
    }

    /// The process ends, and its supervisor starts another.
    pub(super) fn end_seat(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        let Some(seat) = host.seat.take() else { return };
        seat.client.end();
        host.ended_ns = self.now_ns;
        if let Some(agent) = &mut host.agent {
            agent.ended(seat.pid);
        }
        let left = seat.standing() == Standing::Left;
        let id = host.id;
        self.note(|_| format!("program {} of h{id} ends: {:?}", seat.pid, seat.standing()));
        self.call_agent(at);
        if !left {
            let after_ns = self.network.random.random_range(MS / 2..5 * MS);
            self.network.push(self.now_ns + after_ns, Next::StartSeat(at));
        }
    }

    /// Sends the member's packets. False if its host crashes meanwhile.
    pub(super) fn send_out(&mut self, at: usize) -> bool {
        let host = &mut self.hosts[at];
        let Some(seat) = &mut host.seat else { return true };
        let sender = seat.sender;
        let sent = seat.sent();
        let sends = !sent.is_empty();
        for (to, asks, bytes) in sent {
            if may_send(&mut host.dies_after) {
                let plane = u8::from(self.network.chance(500));
                self.network.send(self.now_ns, host.id, to, plane, Voice::Member { sender, asks }, &bytes);
            }
            seat.give_back(bytes);
        }
        if sends {
            self.has_sent(at);
        }
        let host = &self.hosts[at];
        if host.dies_after == Some(0) {
            self.crash(at);
            return false;
        }
        true
    }

    /// Stores on the host that there is a group. The host may crash before or after that; then false.
    pub(super) fn record(&mut self, at: usize) -> bool {
        let host = &mut self.hosts[at];
        let Some(seat) = &mut host.seat else { return false };
        let record = host.record.read().unwrap_or_default();
        let Some(view) = seat.core.poll_record(record.is_founded).cloned() else { return true };
        let (id, member) = (host.id, seat.sender.incarnation);
        let crashes = self.plan.early && !self.network.calm && self.network.chance(50);
        let when = self.network.random.random_range(0..3);
        if crashes && when == 0 {
            self.crash(at);
            return false;
        }
        host.record.write(Record { is_founded: true, ..record });
        if crashes && when == 1 {
            self.crash(at);
            return false;
        }
        host.record.sync();
        if !crashes {
            seat.core.recorded();
            self.note(|_| format!("h{id} begins with {view:?}"));
        }
        self.began.push((id, member, view));
        if crashes {
            self.crash(at);
            return false;
        }
        true
    }

    /// What a user does after each wait.
    pub(super) fn user(&mut self, at: usize) -> Checked {
        if self.network.chance(50) {
            // A member that answers must have delivered all that it has decided.
            self.read(at)?;
        }
        while self.state(at)? | self.deliver(at)? {}
        self.save(at);
        if self.network.chance(50) {
            self.read(at)?;
        }
        Ok(())
    }

    fn deliver(&mut self, at: usize) -> Result<bool, Violation> {
        let mut any = false;
        loop {
            let host = &mut self.hosts[at];
            let (id, now, astray) = (host.id, host.clock.read(self.now_ns), host.is_astray() || self.torn);
            let Some(seat) = &mut host.seat else { return Ok(any) };
            let lease = seat.lease(&now);
            let on_disk = seat.next_on_disk();
            let (instance, value) = match &on_disk {
                Some(decided) => (decided.position, decided.value.clone()),
                None if seat.is_replaying() => return Ok(any),
                None => match seat.core.group.poll_decision(lease) {
                    Some(decision) => (decision.instance, decision.value.to_vec()),
                    None => return Ok(any),
                },
            };
            any = true;
            self.stats.decisions += 1;
            self.stats.from_disk += u64::from(on_disk.is_some());
            let (mut values, mut views) = (Vec::new(), Vec::new());
            for entry in entries(&value) {
                let number = match &entry {
                    Entry::Value(value) => number(value),
                    Entry::Payload(identity) => {
                        let stored = on_disk.iter().flat_map(|decided| &decided.payloads);
                        let mut stored = stored.filter(|(of, _)| of == identity).map(|(_, bytes)| &bytes[..]);
                        let known = || seat.core.group.payload(identity).filter(|_| on_disk.is_none());
                        let Some(payload) = stored.next().or_else(known) else {
                            return violated("payloads", format!("h{id} delivers {identity}, which is not there"));
                        };
                        payload.get(..8).and_then(number)
                    }
                    Entry::View(view) => {
                        if astray {
                            self.views.delivered_astray(view);
                        } else {
                            self.views.delivered(view)?;
                        }
                        views.push(view.clone());
                        continue;
                    }
                };
                values.extend(number);
            }
            let process = seat.sender.process;
            self.note(|_| format!("h{id} delivers instance {instance}: {:?}", Shown(&value, &values)));
            // What the founder has on disk is fixed, whoever acts later.
            if on_disk.is_none() {
                leased(id, lease, "delivers a decision")?;
            }
            if on_disk.is_none() && !self.hosts[at].believes(self.now_ns) {
                self.deaths.acts(id, process, "delivers a decision")?;
            }
            let Some(seat) = &mut self.hosts[at].seat else { return Ok(any) };
            if astray {
                self.log.delivered_astray(seat.state, instance, &value, &values);
            } else {
                self.log.delivered(id, seat.state, instance, &value, &values)?;
                self.register.delivered(id, instance, values.into_iter())?;
            }
            seat.state.apply(instance, &value);
            views.iter().for_each(|view| seat.view_delivered(view));
        }
    }

    /// A user gives its state to the group, or takes over the state of another member.
    fn state(&mut self, at: usize) -> Result<bool, Violation> {
        if self.take_base(at)? {
            return Ok(true);
        }
        let host = &mut self.hosts[at];
        let Some(seat) = &mut host.seat else { return Ok(false) };
        let is_replaying = seat.is_replaying();
        let group = &mut seat.core.group;
        if group.wants_state() && !is_replaying {
            // The outbox has room for many states, and another member asks again.
            let _ = group.give_state(seat.state.bytes());
            return Ok(true);
        }
        let Some((position, bytes)) = group.poll_install() else { return Ok(false) };
        let (id, state) = (host.id, State::read(bytes));
        host.may_be_let_in();
        let Some(seat) = &mut host.seat else { return Ok(false) };
        seat.core.group.installed();
        seat.state = if self.torn { state.unwrap_or_default() } else { self.log.taken_over(id, position, state)? };
        let at_once = self.plan.durable.is_some() && self.disks.random_range(0..2) == 0;
        seat.state_replaced(at_once);
        self.stats.transfers += 1;
        self.note(|_| format!("h{id} takes over the state at {position}"));
        Ok(true)
    }

    /// The user begins to write its state, or has written it.
    fn save(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        let now_ns = host.clock.read(self.now_ns).raw_ns;
        if let Some(seat) = &mut host.seat {
            seat.save(now_ns, &host.store, |most_ns| self.disks.random_range(1..most_ns));
        }
    }

    /// The user is given the state on its own disk.
    fn take_base(&mut self, at: usize) -> Result<bool, Violation> {
        let host = &mut self.hosts[at];
        let Some(seat) = &mut host.seat else { return Ok(false) };
        let Some(base) = seat.take_base() else { return Ok(false) };
        let id = host.id;
        seat.state = if self.torn { base } else { self.log.taken_over(id, base.position, Some(base))? };
        self.note(|_| format!("the user of h{id} is given its state at {}", base.position));
        Ok(true)
    }

    /// A user writes or reads: at a member that believes to lead, or at any.
    pub(super) fn work(&mut self) -> Checked {
        if self.network.calm {
            return Ok(());
        }
        let next_ns = self.network.random.random_range(0..2 * self.plan.work_every_ns);
        self.network.push(self.now_ns + next_ns, Next::Work);
        let first = self.network.random.random_range(0..self.hosts.places());
        let anywhere = self.network.chance(if P::RIDES { 500 } else { 100 });
        let places = (0..self.hosts.places()).map(|step| (first + step) % self.hosts.places());
        let runs = |at: &usize| {
            let host: &Host<P> = &self.hosts[*at];
            host.seat.as_ref().is_some_and(|seat| {
                seat.opened && seat.paused_until_ns <= self.now_ns && (anywhere || seat.core.leads())
            })
        };
        let Some(at) = places.into_iter().find(runs) else { return Ok(()) };
        if self.network.chance(500) {
            return self.read(at);
        }
        self.write(at)
    }

    fn write(&mut self, at: usize) -> Checked {
        let host = &mut self.hosts[at];
        let Some(seat) = &mut host.seat else { return Ok(()) };
        let (id, voice, lease) = (host.id, seat.voice(), seat.lease(&host.clock.read(self.now_ns)));
        let group = &mut seat.core.group;
        let mut value = self.values + 1;
        let mut again = false;
        let taken = if self.network.chance(20) {
            let random = &mut self.network.random;
            let mut payload = vec![7; random.random_range(8..PAYLOAD_MAX_BYTES) as usize];
            payload[..8].copy_from_slice(&value.to_le_bytes());
            if self.plan.equal {
                match random.random_range(0..4) {
                    0 => {
                        payload.resize(PAYLOAD_MAX_BYTES as usize + 1, 7);
                        if group.propose_payload(lease, payload).is_ok() {
                            return violated("payloads", format!("h{id} proposes one that is longer than the bound"));
                        }
                        return Ok(());
                    }
                    1 | 2 if !self.payloads.is_empty() => {
                        payload.clone_from(&self.payloads[random.random_range(0..self.payloads.len())]);
                        value = number(&payload[..8]).expect("8 bytes");
                        again = true;
                    }
                    _ => {}
                }
                if !again {
                    if self.payloads.len() == PAYLOADS_MAX {
                        self.payloads.remove(0);
                    }
                    self.payloads.push(payload.clone());
                }
            }
            let taken = group.propose_payload(lease, payload).is_ok();
            self.stats.payloads += u64::from(taken);
            taken
        } else {
            group.propose(lease, &value.to_le_bytes()).is_ok()
        };
        if taken {
            seat.core.proposed();
            self.values = self.values.max(value);
            self.stats.writes += 1;
            self.note(|_| format!("h{id} is asked to write {value}"));
            self.log.proposed(value, voice);
            if !again {
                self.register.write(value, id);
            }
            // The user waits for its write.
            return self.finish(at);
        }
        Ok(())
    }

    /// A user asks for the state.
    fn read(&mut self, at: usize) -> Checked {
        let host = &self.hosts[at];
        let now = host.clock.read(self.now_ns);
        let Some(seat) = &host.seat else { return Ok(()) };
        let (id, lease, position, process) = (host.id, seat.lease(&now), seat.state.position, seat.sender.process);
        if seat.may_answer(&now) {
            self.stats.reads += 1;
            let believes = host.believes(self.now_ns);
            self.note(|_| format!("h{id} is read: {position} instances"));
            leased(id, lease, "answers")?;
            if believes {
                self.stats.answers_believed += 1;
                self.stats.answers_of_the_dead += u64::from(self.deaths.is_dead((id, process)));
                return Ok(());
            }
            if !self.torn {
                self.log.read(id, position)?;
                self.register.read(id, position)?;
            }
            self.deaths.acts(id, process, "answers")?;
        }
        Ok(())
    }

    fn note_event(&mut self, at: usize, event: &fide_client::Event) {
        use fide_client::Event;
        let many = matches!(event, Event::Piggyback { .. } | Event::PathLost { .. } | Event::PathRestored { .. });
        if self.trace.is_none() || many {
            return;
        }
        let id = self.hosts[at].id;
        self.note(|_| match event {
            Event::Up { evidence, .. } => {
                format!("the member of h{id} is notified that h{}.{} is up", evidence.host_id, evidence.incarnation)
            }
            Event::Verdict(verdict) => {
                let evidence = verdict.evidence;
                let (host, process) = (evidence.host_id, evidence.incarnation);
                format!("the member of h{id} is notified that h{host}.{process} is dead: {:?}", verdict.reason)
            }
            other => format!("the member of h{id} is notified {other:?}"),
        });
    }
}

/// Shows the values and views of a delivered instance.
struct Shown<'a>(&'a [u8], &'a [u64]);

impl fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.1)?;
        let views = entries(self.0).filter_map(|entry| match entry {
            Entry::View(view) => Some(view),
            _ => None,
        });
        views.into_iter().try_for_each(|view| write!(f, ", view {}: {:?}", view.number(), view.hosts()))
    }
}
