// SPDX-License-Identifier: Apache-2.0
//! Flows that share a path, each a connection with an application at either end.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use fide_link_model::{Link, LinkSpec};
use fide_pace::{
    step::Step,
    transport::{Arrival, Config, Counts, Transport},
};
use rand::{RngExt, SeedableRng, rngs::SmallRng};

use crate::{
    steps::Steps,
    tcp::{Cubic, TCP_BYTES, TIMEOUT_NS},
};
/// Room for a packet.
const PACKET_MAX: usize = 1500;
/// Bytes around what a connection writes: header, tag, UDP and IP.
const AROUND: usize = 9 + 16 + 28;
/// Packets for which a socket has room while its thread is at work.
const UNREAD_MAX: usize = 200;

/// When an application sends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Sends {
    /// Whenever a message would leave at once.
    Held,
    /// Each so many nanoseconds.
    Every(u64),
}

/// What is sent one way: by an application, and to the one at the other end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Traffic {
    pub(crate) sends: Sends,
    /// Bytes of a message, from and to.
    pub(crate) bytes: (usize, usize),
    /// What the receiver does with a message takes so long, by a fifth more or less.
    pub(crate) work_ns: u64,
}

/// A flow's two applications.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct FlowSpec {
    pub(crate) config: Config,
    pub(crate) sends: Sends,
    /// Bytes of a message, from and to.
    pub(crate) bytes: (usize, usize),
    /// What the receiver does with a message takes so long, by a fifth more or less.
    pub(crate) work_ns: u64,
    /// What the application at the other end sends meanwhile.
    pub(crate) back: Option<Traffic>,
    /// Messages have deadlines of their own, from and to; none: that of the connection.
    pub(crate) own_deadlines_ns: Option<(u64, u64)>,
    pub(crate) starts_ns: u64,
    /// By how much the receiver's clock is ahead, and how much faster it runs.
    pub(crate) ahead_ns: i64,
    pub(crate) drift_ppm: i64,
    /// The hosts of the sender and of the receiver take time away from their threads.
    pub(crate) pauses: [Option<Pauses>; 2],
    /// The receiver's thread works so long on a packet, and one that has come meanwhile waits; its pace says that it takes four
    /// fifths of that.
    pub(crate) thread_ns: u64,
}

/// Times in which an end's thread does not run: it neither reads, nor sends, nor handles timers. What has come meanwhile is
/// read at once after it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Pauses {
    /// From one to the next, and how long one is: both are means of exponential distributions.
    pub(crate) every_ns: u64,
    pub(crate) long_ns: u64,
    /// The host tells when each packet has come, though it is read later.
    pub(crate) has_times: bool,
}

impl FlowSpec {
    pub(crate) fn held() -> Self {
        Self {
            config: Config::default(),
            sends: Sends::Held,
            bytes: (1000, 1000),
            work_ns: 0,
            back: None,
            own_deadlines_ns: None,
            starts_ns: 0,
            ahead_ns: 0,
            drift_ppm: 0,
            pauses: [None; 2],
            thread_ns: 0,
        }
    }

    /// What an end sends.
    fn traffic(&self, end: usize) -> Option<Traffic> {
        let there = Traffic { sends: self.sends, bytes: self.bytes, work_ns: self.work_ns };
        if end == 0 { Some(there) } else { self.back }
    }
}

/// A message that was sent.
#[derive(Debug, Clone)]
pub(crate) struct SentMessage {
    pub(crate) at_ns: u64,
    pub(crate) expires_ns: u64,
    content: Vec<u8>,
}

/// One end.
#[derive(Debug)]
struct End {
    transport: Transport,
    /// By how much its clock is ahead of the true time, and how much faster it runs.
    ahead_ns: i64,
    drift_ppm: i64,
    pauses: Option<Pauses>,
    /// The last pause that is known, from and until.
    pause_ns: [u64; 2],
    /// Packets that have come: when, number, mark and content.
    unread: Vec<(u64, u64, bool, Vec<u8>)>,
    random: SmallRng,
    steps: Steps,
    /// Its clock was read last then.
    read_ns: u64,
    /// Of its thread for a packet, and until when it is at work.
    thread_ns: u64,
    works_until_ns: u64,
}

/// An exponentially distributed time.
fn exponential_ns(random: &mut SmallRng, mean_ns: u64) -> u64 {
    let share: f64 = random.random();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    let ns = (-(1.0 - share).ln() * mean_ns as f64) as u64;
    ns
}

impl End {
    fn clock(&self, now_ns: u64) -> u64 {
        let drift = i128::from(now_ns) * i128::from(self.drift_ppm) / 1_000_000;
        let now = i128::from(now_ns) + i128::from(self.ahead_ns) + drift;
        u64::try_from(now).unwrap_or(0)
    }

    /// The true time of one by this clock.
    fn true_ns(&self, clock_ns: u64) -> u64 {
        let now =
            (i128::from(clock_ns) - i128::from(self.ahead_ns)) * 1_000_000 / (1_000_000 + i128::from(self.drift_ppm));
        u64::try_from(now + 1).unwrap_or(0)
    }

    /// Until when its thread does not run; none: it runs.
    fn paused_until_ns(&mut self, now_ns: u64) -> Option<u64> {
        let Pauses { every_ns, long_ns, .. } = self.pauses?;
        while self.pause_ns[1] <= now_ns {
            let from_ns = self.pause_ns[1] + exponential_ns(&mut self.random, every_ns);
            self.pause_ns = [from_ns, from_ns + exponential_ns(&mut self.random, long_ns) + 1];
        }
        (self.pause_ns[0] <= now_ns).then_some(self.pause_ns[1])
    }

    /// Reads all that has come.
    fn read(&mut self, now_ns: u64) {
        let clock_ns = self.clock(now_ns);
        let has_times = self.pauses.is_some_and(|pauses| pauses.has_times);
        let count = if self.thread_ns > 0 { self.unread.len().min(1) } else { self.unread.len() };
        let worked_until_ns = self.works_until_ns;
        if self.thread_ns > 0 && count > 0 {
            self.works_until_ns = now_ns + self.thread_ns;
            self.transport.note_step(clock_ns, Step::Receive, self.thread_ns / 5 * 4);
        }
        for (came_ns, number, is_marked, plain) in self.unread.drain(..count) {
            // What came while the thread was at work is its queue.
            let waited_ns = if has_times && came_ns >= worked_until_ns { now_ns - came_ns } else { 0 };
            let exchanges = self.transport.round_trips().exchanges();
            let opened = self.transport.open(clock_ns, number, &plain, Arrival { is_marked, waited_ns });
            opened.unwrap_or_else(|why| panic!("an end refuses the other's packet: {why}"));
            let trips = self.transport.round_trips();
            if trips.exchanges() > exchanges {
                // Exchanges of before count besides.
                let others_ns = (trips.shortest_us() * 750).max(75_000_000);
                let short_ns = (trips.shortest_us().max(trips.latest_us()) * 250).max(200_000);
                self.steps.compared(&plain, now_ns + others_ns, short_ns);
            }
            self.steps.forget(now_ns);
        }
    }
}

/// What became of what an end has sent.
#[derive(Debug, Default)]
pub(crate) struct Way {
    pub(crate) sent: BTreeMap<u64, SentMessage>,
    /// Number, when it was delivered.
    pub(crate) delivered: Vec<(u64, u64)>,
    /// The receiver works until then.
    busy_ns: u64,
    next_send_ns: u64,
}

#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) spec: FlowSpec,
    ends: [End; 2],
    /// There and back.
    pub(crate) ways: [Way; 2],
    /// Bytes of this flow that the link there has carried, with headers and repairs.
    pub(crate) carried_bytes: u64,
    /// When each packet of the sender left.
    pub(crate) departed_ns: Vec<u64>,
}

impl Flow {
    pub(crate) fn longest_deadline_ns(&self) -> u64 {
        self.spec.config.deadline_ns.max(self.spec.own_deadlines_ns.map_or(0, |(_, to_ns)| to_ns))
    }

    /// What the sending end has done.
    pub(crate) fn counts(&self) -> Counts {
        self.ends[0].transport.counts()
    }

    /// [`Way::delivery_times_ns`] there.
    pub(crate) fn delivery_times_ns(&self, from_ns: u64, to_ns: u64) -> Vec<u64> {
        self.ways[0].delivery_times_ns(from_ns, to_ns)
    }

    /// [`Way::gaps_ns`] there.
    pub(crate) fn gaps_ns(&self, from_ns: u64, to_ns: u64) -> Vec<u64> {
        self.ways[0].gaps_ns(from_ns, to_ns)
    }
}

impl Way {
    /// Time from sending to delivery of each message sent within a time.
    pub(crate) fn delivery_times_ns(&self, from_ns: u64, to_ns: u64) -> Vec<u64> {
        let of = |(number, at_ns): &(u64, u64)| (self.sent[number].at_ns, at_ns - self.sent[number].at_ns);
        self.delivered
            .iter()
            .map(of)
            .filter(|(sent_ns, _)| (from_ns..to_ns).contains(sent_ns))
            .map(|(_, time)| time)
            .collect()
    }

    /// Times between messages sent within a time.
    pub(crate) fn gaps_ns(&self, from_ns: u64, to_ns: u64) -> Vec<u64> {
        let sent: Vec<u64> =
            self.sent.values().map(|sent| sent.at_ns).filter(|at_ns| (from_ns..to_ns).contains(at_ns)).collect();
        sent.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A packet comes at an end.
    Arrives { flow: usize, end: usize, number: u64, is_marked: bool, plain: Vec<u8> },
    /// A packet that was written ahead leaves.
    Departs { flow: usize, end: usize, number: u64, plain: Vec<u8> },
    /// An end, or its application, has something to do.
    Wakes { flow: usize, end: usize },
    /// A packet of a TCP is acknowledged; none when it starts, and for its timeout.
    Acked { tcp: usize, number: Option<u64> },
}

pub(crate) struct World {
    pub(crate) now_ns: u64,
    pub(crate) flows: Vec<Flow>,
    /// They share the links.
    pub(crate) tcps: Vec<Cubic>,
    /// There and back, shared by all.
    pub(crate) links: [Link; 2],
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// The earliest event of each end that is in the heap.
    wakes: BTreeMap<(usize, usize), u64>,
    count: u64,
    pub(crate) random: SmallRng,
    /// Each packet comes once more so much later; 0 for none.
    pub(crate) again_ns: u64,
    /// Packets that are written ahead leave at their times; else at once, as if the queue had been replaced.
    pub(crate) keeps_times: bool,
    /// A message may be late by a step of a clock: [`Steps`].
    pub(crate) excuses_steps: bool,
    /// By how much a message may be late at each end if the ways were said to be even, of all links that there were.
    even_late_ns: [u64; 2],
    /// What one way takes if the ways are even, as both ends were told with the set-up.
    even_ns: u64,
}

impl World {
    pub(crate) fn new(seed: u64, there: LinkSpec, back: LinkSpec, flows: &[FlowSpec]) -> Self {
        // The sender's clock has shown an hour and more, so that neither shows less than nothing.
        Self::since(5_000_000_000_000, seed, there, back, flows)
    }

    /// The same with clocks that have shown months, and may step back by hours.
    pub(crate) fn aged(seed: u64, there: LinkSpec, back: LinkSpec, flows: &[FlowSpec]) -> Self {
        Self::since(10_000_000_000_000_000, seed, there, back, flows)
    }

    fn since(base: i64, seed: u64, there: LinkSpec, back: LinkSpec, flows: &[FlowSpec]) -> Self {
        let round_trip_us = (there.delay_ns + back.delay_ns) / 1000;
        let flows: Vec<Flow> = flows
            .iter()
            .map(|spec| {
                let end = |at: u64, ahead_ns: i64, drift_ppm| {
                    let mut end = End {
                        transport: Transport::new(0, spec.config, round_trip_us),
                        ahead_ns,
                        drift_ppm,
                        pauses: spec.pauses[usize::from(at > 0)],
                        pause_ns: [spec.starts_ns; 2],
                        unread: Vec::new(),
                        random: SmallRng::seed_from_u64(seed.wrapping_mul(2) + at),
                        steps: Steps::default(),
                        read_ns: spec.starts_ns,
                        thread_ns: if at > 0 { spec.thread_ns } else { 0 },
                        works_until_ns: 0,
                    };
                    end.transport = Transport::new(end.clock(spec.starts_ns), spec.config, round_trip_us);
                    end
                };
                Flow {
                    spec: *spec,
                    ends: [end(0, base, 0), end(1, base + spec.ahead_ns, spec.drift_ppm)],
                    ways: [(); 2].map(|()| Way { next_send_ns: spec.starts_ns, ..Way::default() }),
                    carried_bytes: 0,
                    departed_ns: Vec::new(),
                }
            })
            .collect();
        let mut world = Self {
            now_ns: 0,
            links: [Link::new(there, seed), Link::new(back, !seed)],
            events: BinaryHeap::new(),
            wakes: BTreeMap::new(),
            count: 0,
            random: SmallRng::seed_from_u64(seed),
            again_ns: 0,
            keeps_times: true,
            excuses_steps: false,
            even_late_ns: [0; 2],
            even_ns: round_trip_us * 1000 / 2,
            tcps: Vec::new(),
            flows,
        };
        for flow in 0..world.flows.len() {
            let at_ns = world.flows[flow].spec.starts_ns;
            (0..2).for_each(|end| world.wake(at_ns, flow, end));
        }
        world
    }

    fn add(&mut self, at_ns: u64, event: Event) {
        self.count += 1;
        self.events.push(Reverse((at_ns, self.count, event)));
        assert!(self.count < 20_000_000, "at {at_ns} too much happens");
    }

    fn wake(&mut self, at_ns: u64, flow: usize, end: usize) {
        let at_ns = at_ns.max(self.now_ns);
        if self.wakes.get(&(flow, end)).is_none_or(|known_ns| at_ns < *known_ns) {
            self.wakes.insert((flow, end), at_ns);
            self.add(at_ns, Event::Wakes { flow, end });
        }
    }

    /// Runs until a time.
    pub(crate) fn run_until(&mut self, until_ns: u64) {
        while let Some(Reverse((at_ns, ..))) = self.events.peek()
            && *at_ns <= until_ns
        {
            let Some(Reverse((at_ns, _, event))) = self.events.pop() else { break };
            self.now_ns = at_ns;
            let (flow, end) = match event {
                Event::Arrives { flow, end, number, is_marked, plain } => {
                    let this = &mut self.flows[flow].ends[end];
                    if this.thread_ns == 0 || this.unread.len() < UNREAD_MAX {
                        this.unread.push((at_ns, number, is_marked, plain));
                    }
                    (flow, end)
                }
                Event::Wakes { flow, end } => {
                    if self.wakes.get(&(flow, end)) != Some(&at_ns) {
                        continue;
                    }
                    self.wakes.remove(&(flow, end));
                    (flow, end)
                }
                Event::Acked { tcp, number } => {
                    self.acked(tcp, number);
                    continue;
                }
                Event::Departs { flow, end, number, plain } => {
                    self.departs(flow, end, number, &plain);
                    continue;
                }
            };
            let this = &mut self.flows[flow].ends[end];
            if let Some(until_ns) = this.paused_until_ns(at_ns) {
                self.wake(until_ns, flow, end);
                continue;
            }
            if this.works_until_ns > at_ns {
                let until_ns = this.works_until_ns;
                self.wake(until_ns, flow, end);
                continue;
            }
            this.read_ns = at_ns;
            self.flows[flow].ends.iter_mut().for_each(|each| each.steps.was_read(at_ns, end));
            let this = &mut self.flows[flow].ends[end];
            this.read(at_ns);
            let works_until_ns = Some(this.works_until_ns).filter(|_| !this.unread.is_empty());
            self.act(flow, end);
            if let Some(until_ns) = works_until_ns {
                self.wake(until_ns, flow, end);
            }
        }
        self.now_ns = until_ns;
    }

    /// A TCP starts.
    pub(crate) fn add_tcp(&mut self, starts_ns: u64) {
        self.tcps.push(Cubic::new());
        self.add(starts_ns, Event::Acked { tcp: self.tcps.len() - 1, number: None });
    }

    fn acked(&mut self, tcp: usize, number: Option<u64>) {
        let now_ns = self.now_ns;
        match number {
            Some(number) => self.tcps[tcp].acked(now_ns, number),
            None => {
                self.tcps[tcp].timeout(now_ns);
                self.add(now_ns + TIMEOUT_NS, Event::Acked { tcp, number: None });
            }
        }
        while let Some(number) = self.tcps[tcp].send() {
            for arrival in self.links[0].enter(now_ns, TCP_BYTES) {
                self.tcps[tcp].carried_bytes += TCP_BYTES as u64;
                let back_ns = self.links[1].spec.delay_ns;
                self.add(arrival.at_ns + back_ns, Event::Acked { tcp, number: Some(number) });
            }
        }
    }

    /// The receiving application of a flow takes nothing until then.
    pub(crate) fn stop_receiver(&mut self, flow: usize, until_ns: u64) {
        self.flows[flow].ways[0].busy_ns = until_ns;
        self.wake(until_ns, flow, 1);
    }

    /// The sending application of a flow does otherwise from now on.
    pub(crate) fn restart_sends(&mut self, flow: usize) {
        self.flows[flow].ways[0].next_send_ns = self.now_ns;
        self.wake(self.now_ns, flow, 0);
    }

    /// The sending application of a flow sends nothing more.
    pub(crate) fn stop_sends(&mut self, flow: usize) {
        self.flows[flow].spec.sends = Sends::Every(u64::MAX);
        self.flows[flow].ways[0].next_send_ns = u64::MAX;
    }

    /// Nor does the one at its other end.
    pub(crate) fn stop_back(&mut self, flow: usize) {
        self.flows[flow].spec.back = None;
    }

    /// The receiving applications of a flow take what comes at once from now on.
    pub(crate) fn take_at_once(&mut self, flow: usize) {
        let this = &mut self.flows[flow];
        this.spec.work_ns = 0;
        this.ways.iter_mut().for_each(|way| way.busy_ns = 0);
        (0..2).for_each(|end| self.wake(self.now_ns, flow, end));
    }

    /// An end sends one more message. Returns its number.
    pub(crate) fn send_one(&mut self, flow: usize, end: usize, deadline_ns: u64) -> u64 {
        let content = b"one more".to_vec();
        let now_ns = self.now_ns;
        let this = &mut self.flows[flow];
        let clock_ns = this.ends[end].clock(now_ns);
        let sender = &mut this.ends[end].transport;
        let taken = sender.send(clock_ns, &content, Some(deadline_ns));
        let number = taken.unwrap_or_else(|why| panic!("flow {flow}, end {end}: {why}: {sender:?}"));
        let expires_ns = now_ns + deadline_ns;
        this.ways[end].sent.insert(number, SentMessage { at_ns: now_ns, expires_ns, content });
        self.wake(now_ns, flow, end);
        number
    }

    /// An end, and what its clock shows.
    pub(crate) fn transport(&mut self, flow: usize, end: usize) -> (&mut Transport, u64) {
        let this = &mut self.flows[flow].ends[end];
        let clock_ns = this.clock(self.now_ns);
        (&mut this.transport, clock_ns)
    }

    /// A clock shows so much more from now on: its host was suspended, or the other one.
    pub(crate) fn step_clock(&mut self, flow: usize, end: usize, by_ns: i64) {
        self.flows[flow].ends[end].ahead_ns += by_ns;
        let now_ns = self.now_ns;
        if self.excuses_steps {
            let read_ns = self.flows[flow].ends[end].read_ns;
            self.flows[flow].ends.iter_mut().for_each(|each| each.steps.stepped(now_ns, by_ns, end, read_ns));
        }
        self.wake(self.now_ns, flow, end);
    }

    /// An end does all that it can do now.
    fn act(&mut self, flow: usize, end: usize) {
        let now_ns = self.now_ns;
        let clock_ns = self.flows[flow].ends[end].clock(now_ns);
        self.flows[flow].ends[end].transport.timeout(clock_ns);
        let mut wakes_ns = u64::MAX;
        for turn in 0.. {
            assert!(turn < 20_000, "an end never rests: {:?}", self.flows[flow].ends[end].transport);
            wakes_ns = wakes_ns.min(self.sends(flow, end)).min(self.receives(flow, end));
            if !self.transmits(flow, end) {
                break;
            }
            wakes_ns = u64::MAX;
        }
        let this = &self.flows[flow].ends[end];
        let due_ns = this.transport.due_ns(clock_ns);
        let due_ns = if due_ns == u64::MAX { u64::MAX } else { this.true_ns(due_ns).max(now_ns + 1) };
        self.wake(wakes_ns.min(due_ns), flow, end);
    }

    /// Whether anything was sent.
    fn transmits(&mut self, flow: usize, end: usize) -> bool {
        let (mut any, mut count) = (false, 0);
        let clock_ns = self.flows[flow].ends[end].clock(self.now_ns);
        let mut plain = [0; PACKET_MAX];
        while let Some(written) = self.flows[flow].ends[end].transport.write(clock_ns, &mut plain) {
            any = true;
            count += 1;
            self.flows[flow].ends[end].steps.left(written.number, &plain[..written.len]);
            assert!(count < 20_000, "an end never stops to send: {:?}", self.flows[flow].ends[end].transport);
            let end_of = &self.flows[flow].ends[end];
            // The host keeps the times of what is written ahead.
            let departs_ns = written.departs_ns.map_or(self.now_ns, |ns| end_of.true_ns(ns).saturating_sub(1));
            assert!(departs_ns >= self.now_ns.saturating_sub(1), "it is past as it is written");
            if end == 0 {
                self.flows[flow].departed_ns.push(departs_ns);
            }
            let plain = plain[..written.len].to_vec();
            if departs_ns > self.now_ns && self.keeps_times {
                self.add(departs_ns, Event::Departs { flow, end, number: written.number, plain });
            } else {
                self.departs(flow, end, written.number, &plain);
            }
        }
        any
    }

    /// A packet leaves now.
    fn departs(&mut self, flow: usize, end: usize, number: u64, plain: &[u8]) {
        let arrivals: Vec<_> = self.links[end].enter(self.now_ns, plain.len() + AROUND).collect();
        if end == 0 && !arrivals.is_empty() {
            self.flows[flow].carried_bytes += (plain.len() + AROUND) as u64;
        }
        for arrival in arrivals {
            let (plain, is_marked) = (plain.to_vec(), arrival.is_marked);
            if self.again_ns > 0 {
                let plain = plain.clone();
                let again = Event::Arrives { flow, end: 1 - end, number, is_marked, plain };
                self.add(arrival.at_ns + self.again_ns, again);
            }
            self.add(arrival.at_ns, Event::Arrives { flow, end: 1 - end, number, is_marked, plain });
        }
    }

    /// The sending application at an end. Returns when it wants to send again.
    fn sends(&mut self, flow: usize, end: usize) -> u64 {
        let now_ns = self.now_ns;
        let this = &mut self.flows[flow];
        let Some(traffic) = this.spec.traffic(end) else { return u64::MAX };
        let (from, way) = (&mut this.ends[end], &mut this.ways[end]);
        let clock_ns = from.clock(now_ns);
        let at_ns = match traffic.sends {
            Sends::Held => {
                let Some(clock_at_ns) = from.transport.may_send_at(clock_ns) else {
                    from.transport.send_waits(clock_ns);
                    return u64::MAX;
                };
                from.true_ns(clock_at_ns).saturating_sub(1)
            }
            Sends::Every(_) => way.next_send_ns,
        };
        if at_ns > now_ns {
            if traffic.sends == Sends::Held {
                from.transport.send_waits(clock_ns);
            }
            return at_ns;
        }
        let len = self.random.random_range(traffic.bytes.0..=traffic.bytes.1);
        let first: u8 = self.random.random();
        let content: Vec<u8> = (0..len).map(|at| first.wrapping_add(u8::try_from(at % 251).unwrap())).collect();
        if let Sends::Every(every_ns) = traffic.sends {
            way.next_send_ns += every_ns;
        }
        let own_ns = this.spec.own_deadlines_ns.map(|(from_ns, to_ns)| self.random.random_range(from_ns..=to_ns));
        if let Ok(number) = from.transport.send(clock_ns, &content, own_ns) {
            let expires_ns = now_ns + own_ns.unwrap_or(this.spec.config.deadline_ns);
            way.sent.insert(number, SentMessage { at_ns: now_ns, expires_ns, content });
        }
        match traffic.sends {
            Sends::Held => u64::MAX,
            Sends::Every(_) => way.next_send_ns,
        }
    }

    /// By how much a message may be late that comes to this end, if the ways were said to be even and are not. The sender counts with half of
    /// a round trip, at most that of the set-up, and the receiver knows the sender's clock but for what the way back takes: the least that it
    /// has taken. Besides, a clock's resolution.
    fn late_ns(&mut self, end: usize) -> u64 {
        let back_ns = self.links[end].spec.delay_ns;
        let late_ns = &mut self.even_late_ns[end];
        *late_ns = self.even_ns.saturating_sub(back_ns).max(*late_ns);
        *late_ns + 2000
    }

    /// The receiving application at an end: takes messages while it has time. Returns when it has again.
    fn receives(&mut self, flow: usize, end: usize) -> u64 {
        let now_ns = self.now_ns;
        let late_ns = self.late_ns(end);
        let this = &mut self.flows[flow];
        let work_ns = this.spec.traffic(1 - end).map_or(0, |traffic| traffic.work_ns);
        let (to, way) = (&mut this.ends[end], &mut this.ways[1 - end]);
        // Of several exchanges of times, one each half second or so, the best one counts: the clocks have drifted apart since then.
        let drift_ns = this.spec.drift_ppm.unsigned_abs() * 2000;
        let even_late_ns = if this.spec.config.even_ways { late_ns + drift_ns } else { 0 };
        let clock_ns = to.clock(now_ns);
        while way.busy_ns <= now_ns {
            let Some(message) = to.transport.poll_message(clock_ns) else { return u64::MAX };
            let sent = way.sent.get(&message.number).expect("a message that was sent");
            assert_eq!(message.bytes, sent.content, "message {} is another one", message.number);
            let late_ns = even_late_ns + to.steps.late_ns(now_ns, sent.at_ns);
            assert!(
                now_ns <= sent.expires_ns + late_ns,
                "flow {flow}, message {} to end {end} is {} ns late, and {late_ns} were allowed; sent at {} us, now {} us",
                message.number,
                now_ns - sent.expires_ns,
                sent.at_ns / 1000,
                now_ns / 1000
            );
            let last = way.delivered.last().map(|(number, _)| *number);
            assert!(last.is_none_or(|last| last < message.number), "{} after {last:?}", message.number);
            way.delivered.push((message.number, now_ns));
            to.transport.recycle(message);
            if work_ns > 0 {
                let fifth = work_ns / 5;
                way.busy_ns = now_ns + self.random.random_range(work_ns - fifth..=work_ns + fifth);
            }
        }
        way.busy_ns
    }
}

/// The value below which a share of all is, in milliseconds.
pub(crate) fn percentile_ms(values: &mut [u64], share: f64) -> f64 {
    values.sort_unstable();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    let at = ((values.len() as f64 - 1.0) * share) as usize;
    #[allow(clippy::cast_precision_loss)]
    values.get(at).map_or(f64::NAN, |ns| *ns as f64 / 1e6)
}
