// SPDX-License-Identifier: Apache-2.0
//! Packets that are written ahead, for a host that keeps their times better than it wakes a thread.

use fide_link_model::LinkSpec;

use std::collections::VecDeque;

use fide_pace::transport::{Arrival, Config, Transport};

use crate::world::{FlowSpec, Pauses, Sends, Traffic, World, percentile_ms};

const S: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;
const AHEAD_NS: u64 = 250_000;

/// A thread that is woken late again and again, by 80 us and seldom by more than 250.
const LATE: Pauses = Pauses { every_ns: 300_000, long_ns: 80_000, has_times: true };

/// The 1st and 99th percentile of the times between packets in microseconds, the 99th of delivery in milliseconds, and what was
/// delivered, from the second second on.
fn run(bits_per_s: u64, ahead_ns: u64, pauses: Option<Pauses>) -> ([f64; 2], f64, usize) {
    let there = LinkSpec::of(5 * MS).with_rate(bits_per_s, 100_000);
    let flow = FlowSpec { pauses: [pauses, None], ..FlowSpec::held() };
    let mut world = World::new(1, there, LinkSpec::of(5 * MS), &[flow]);
    world.transport(0, 0).0.writes_ahead(ahead_ns);
    world.run_until(10 * S);
    let flow = &world.flows[0];
    let steady = flow.departed_ns.iter().filter(|at_ns| **at_ns > 2 * S).copied().collect::<Vec<_>>();
    let mut gaps: Vec<u64> = steady.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
    let gaps = [0.01, 0.99].map(|share| percentile_ms(&mut gaps, share) * 1000.0);
    let mut times = flow.delivery_times_ns(2 * S, 10 * S);
    (gaps, percentile_ms(&mut times, 0.99), times.len())
}

/// At 540 us a packet.
#[test]
fn times_are_kept_though_a_thread_wakes_late() {
    let least = |gaps: [f64; 2]| gaps[1] - gaps[0];
    let (calm, calm_p99, calm_count) = run(16_000_000, 0, None);
    let (late, ..) = run(16_000_000, 0, Some(LATE));
    let (kept, kept_p99, kept_count) = run(16_000_000, AHEAD_NS, Some(LATE));
    println!("gaps in us: calm {calm:.0?}, late {late:.0?}, kept {kept:.0?}; p99 {calm_p99:.2} and {kept_p99:.2} ms");
    assert!(least(late) > 2.0 * least(kept), "by so much gaps differ that its thread makes");
    assert!(kept_p99 <= calm_p99 + 0.3, "a message is made so much sooner");
    assert!(kept_count * 100 >= calm_count * 97, "{kept_count} of {calm_count}");
}

/// Nothing overtakes: what leaves at once follows what was written before, so that no loss is seen where there is none.
#[test]
fn packets_leave_in_the_order_of_their_numbers() {
    for (bits_per_s, way_ns) in [(16_000_000, 5 * MS), (100_000_000, 5 * MS), (200_000_000, MS / 10)] {
        let sent = [0, AHEAD_NS].map(|ahead_ns| {
            let link = LinkSpec::of(way_ns).with_rate(bits_per_s, 200_000);
            let back = Some(Traffic { sends: Sends::Held, bytes: (1000, 1000), work_ns: 0 });
            let mut world = World::new(1, link, link, &[FlowSpec { back, ..FlowSpec::held() }]);
            (0..2).for_each(|end| world.transport(0, end).0.writes_ahead(ahead_ns));
            world.run_until(3 * S / 2);
            (0..2).for_each(|end| {
                let counts = world.transport(0, end).0.counts();
                assert_eq!(counts.sent.again, 0, "{bits_per_s}, {way_ns} ns, end {end}: {counts:?}");
            });
            world.flows[0].ways.each_ref().map(|way| way.sent.len()).iter().sum::<usize>()
        });
        println!("{bits_per_s}, {way_ns} ns: {sent:?} messages");
        assert!(sent[1] * 10 >= sent[0] * 9, "{sent:?}");
    }
}

/// The world fails if a message is late.
#[test]
fn nothing_is_late_where_the_times_are_not_kept() {
    for (bits_per_s, way_ns) in [(1_000_000_000, 20_000), (1_000_000_000, 100_000), (30_000_000, 50_000)] {
        let link = LinkSpec::of(way_ns).with_rate(bits_per_s, 200_000);
        let back = Some(Traffic { sends: Sends::Held, bytes: (1000, 1000), work_ns: 0 });
        let sends = Sends::Every(500_000);
        let mut flow = FlowSpec { sends, bytes: (100, 100), work_ns: 700_000, back, ..FlowSpec::held() };
        (flow.config.deadline_ns, flow.config.queue_max) = (3 * MS, 10);
        flow.own_deadlines_ns = Some((1_500_000, 4 * MS));
        let mut world = World::new(1, link, link, &[flow]);
        world.keeps_times = false;
        world.transport(0, 1).0.writes_ahead(AHEAD_NS);
        world.run_until(2 * S);
        println!("{bits_per_s}, {way_ns} ns: {} delivered", world.flows[0].ways[0].delivered.len());
        assert!(world.flows[0].ways[0].delivered.len() > 400, "{}", world.flows[0].ways[0].delivered.len());
    }
}

const BASE: u64 = 5_000_000_000_000;

/// Two ends of one host, 2 ms apart, and what is on its way to each: when it comes, its number and bytes.
struct Two {
    ends: [Transport; 2],
    ways: [VecDeque<(u64, u64, Vec<u8>)>; 2],
    free_ns: [u64; 2],
}

impl Two {
    /// Whether a packet was written well ahead.
    fn flush(&mut self, end: usize, now_ns: u64) -> bool {
        let mut plain = [0; 1500];
        let mut is_ahead = false;
        while let Some(written) = self.ends[end].write(now_ns, &mut plain) {
            let departs_ns = written.departs_ns.unwrap_or(now_ns);
            is_ahead |= departs_ns > now_ns + 100_000;
            let took_ns = if end == 0 { written.len as u64 * 500 } else { 1000 };
            self.free_ns[end] = self.free_ns[end].max(departs_ns) + took_ns;
            let way = &mut self.ways[1 - end];
            way.push_back((self.free_ns[end] + 2 * MS, written.number, plain[..written.len].to_vec()));
        }
        is_ahead
    }

    /// What both ends and their applications do at a time.
    fn turn(&mut self, end: usize, now_ns: u64) {
        while let Some((_, number, plain)) = self.ways[end].pop_front_if(|(at_ns, ..)| *at_ns <= now_ns) {
            self.ends[end].open(now_ns, number, &plain, Arrival::default()).unwrap();
        }
        self.ends[end].timeout(now_ns);
        while self.ends[end].poll_message(now_ns).is_some() {}
    }
}

/// A process is stopped just after it has written a packet ahead, and reads the clock as it goes on, which shows `back_ns` less than it
/// should. What had come is read a moment later. Returns how late a message is that it delivers.
fn stopped(ahead_ns: u64, stop_ns: u64, back_ns: u64, until_ns: u64, later_ns: u64) -> Option<u64> {
    let config = Config { residual_loss: 0.0, ..Config::default() };
    let ends = [(); 2].map(|()| Transport::new(BASE, config, 4000));
    let mut two = Two { ends, ways: Default::default(), free_ns: [0; 2] };
    two.ends[0].writes_ahead(ahead_ns);
    let (mut now_ns, mut stopped_ns, mut expires_ns) = (BASE, None, 0);
    while stopped_ns.is_none_or(|at_ns| now_ns < at_ns + stop_ns - 50 * MS) {
        now_ns += 10_000;
        assert!(now_ns < BASE + 8 * S, "no packet was written ahead");
        for end in 0..2 {
            if end == 0 && stopped_ns.is_some() {
                continue;
            }
            two.turn(end, now_ns);
            if end == 0 && two.ends[0].may_send_at(now_ns).is_some_and(|at_ns| at_ns <= now_ns) {
                two.ends[0].send(now_ns, &[1; 1000], None).unwrap();
            }
            let sends = stopped_ns.is_none_or(|at_ns: u64| now_ns < at_ns + until_ns);
            if end == 1 && (now_ns - BASE).is_multiple_of(500_000) && sends {
                // Its queue is full if the path is busy.
                if two.ends[1].send(now_ns, b"of B", Some(100 * MS)).is_ok() {
                    expires_ns = now_ns + 100 * MS;
                }
            }
            let is_ahead = two.flush(end, now_ns);
            let has_message = |(at_ns, _, plain): &(u64, u64, Vec<u8>)| {
                *at_ns > now_ns + 500_000 && plain.windows(4).any(|window| window == b"of B")
            };
            let is_time = end == 0 && now_ns > BASE + 3 * S && stopped_ns.is_none();
            if is_time && (is_ahead || ahead_ns == 0) && two.ways[0].iter().any(has_message) {
                stopped_ns = Some(now_ns);
            }
        }
    }
    now_ns = stopped_ns.unwrap() + stop_ns;
    two.ends[0].timeout(now_ns - back_ns);
    now_ns += later_ns;
    while let Some((_, number, plain)) = two.ways[0].pop_front_if(|(at_ns, ..)| *at_ns <= now_ns) {
        two.ends[0].open(now_ns - back_ns, number, &plain, Arrival::default()).unwrap();
        if two.ends[0].poll_message(now_ns - back_ns).is_some() {
            return now_ns.checked_sub(expires_ns);
        }
    }
    None
}

/// What is written ahead has left before the step for all that is known of clocks.
#[test]
fn process_that_is_stopped_after_it_has_written_ahead_delivers_nothing_late() {
    const HOUR: u64 = 3600 * S;
    for (stop_ns, back_ns) in [(2 * S, 0), (900 * MS, HOUR)] {
        for until_ns in [2_500_000, 3_500_000, 4 * MS] {
            for later_ns in [MS, 3 * MS] {
                for ahead_ns in [0, AHEAD_NS] {
                    let late_ns = stopped(ahead_ns, stop_ns, back_ns, until_ns, later_ns);
                    assert_eq!(late_ns, None, "{stop_ns}, {back_ns}, {until_ns}, {later_ns}, {ahead_ns}");
                }
            }
        }
    }
}
