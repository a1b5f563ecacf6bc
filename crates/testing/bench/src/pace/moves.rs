// SPDX-License-Identifier: Apache-2.0
//! The slowest step moves in mid-run: the network, then the receiver, then the sender, then the network again.
//!
//! Two filter windows after each move the pace should be the new one, and no queue be left from the change.

use std::{
    net::SocketAddr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use fide_link_model::LinkSpec;
use fide_pace_socket::{Config, Connection, now_ns};
use fide_testbed::{
    Spec, Stops, Testbed,
    emulator::Emulator,
    figures::{Figure, Goal, Report},
};
use rand::{SeedableRng, rngs::SmallRng};

use crate::{
    carriers::{LEVEL, PACKET, SILENCE, pair},
    flow::about,
    found::figure,
};

/// X-PACE's filter window.
const WINDOW: Duration = Duration::from_nanos(fide_pace::step::WINDOW_NS);
/// Windows after which a move should be over.
const WINDOWS: u32 = 2;
/// What is measured of each phase after that.
const STEADY: Duration = Duration::from_secs(4);
const STEADY_QUICK: Duration = Duration::from_secs(1);
/// The mean of so long shows whether a pace has been reached.
const LOOK_NS: u64 = 500_000_000;
/// Between two looks at what waits at the receiver: less than its work on a message takes.
const LOOKS_EVERY: Duration = Duration::from_millis(2);
/// A pace so near to the slowest step's is its pace.
const NEAR: f64 = 0.1;

/// One bottleneck.
#[derive(Debug, Clone, Copy)]
struct Phase {
    name: &'static str,
    link: LinkSpec,
    send_work: Duration,
    receive_work: Duration,
    pace: Duration,
}

/// What a phase has shown.
#[derive(Debug, Clone)]
struct Seen {
    begun_ns: u64,
    steady_ns: u64,
    ended_ns: u64,
    /// The longest queue on the link, in packets, and the most messages that waited at the receiver.
    on_link: f64,
    at_receiver: u64,
    /// By how much the link's own thread was late at most.
    link_late_ns: u64,
    /// What the sender takes for the slowest step in the end.
    slowest: String,
}

impl Seen {
    /// The longest queue, wherever it was: before a slow link it is on the link, before a slow receiver at that.
    fn queue(&self) -> f64 {
        self.on_link.max(self.at_receiver as f64)
    }
}

fn phases() -> [Phase; 4] {
    let ms = Duration::from_millis;
    let local = LinkSpec::of(15_000_000);
    let (slow, fast) = (local.with_rate(1_600_000, 18_000), local.with_rate(16_000_000, 180_000));
    let of = |name, link, send_work, receive_work, pace| Phase { name, link, send_work, receive_work, pace };
    [
        of("network", slow, ms(0), ms(0), ms(5)),
        of("receiver", fast, ms(0), ms(8), ms(8)),
        of("sender", fast, ms(12), ms(0), ms(12)),
        of("network", slow, ms(0), ms(0), ms(5)),
    ]
}

/// Adds the figures.
pub(crate) fn measure(report: &mut Report, is_quick: bool) {
    let steady = if is_quick { STEADY_QUICK } else { STEADY };
    let found = run(steady).map_err(|why| format!("{why:#}"));
    if let Err(why) = &found {
        println!("moves NOT MEASURED: {why}");
    }
    let count = found.as_ref().map_or(0, |(_, sent)| sent.len());
    let of_moves =
        |name: &str, unit: &str, limit: Option<f64>, value: &dyn Fn(&Phase, &Seen, &[u64]) -> f64| -> Figure {
            let values = found.as_ref().map(|(seen, sent)| {
                let moves = phases().into_iter().zip(seen).skip(1);
                moves.map(|(phase, seen)| value(&phase, seen, sent)).collect::<Vec<f64>>()
            });
            let each = values.as_ref().map_or(String::new(), |values| {
                let each = phases().into_iter().skip(1).zip(values);
                each.map(|(phase, value)| format!("to the {} {value:.2}", phase.name)).collect::<Vec<_>>().join(", ")
            });
            // One that cannot be told is the worst.
            let worst = |values: Vec<f64>| {
                values.into_iter().fold(0.0, |worst, value| if value > worst || value.is_nan() { value } else { worst })
            };
            let figure = figure(name, unit, count, values.map(worst).map_err(Clone::clone));
            let figure = limit.map(Goal::AtMost).map_or(figure.clone(), |goal| figure.goal(goal));
            if each.is_empty() { figure } else { figure.remark(each) }
        };
    report.add(of_moves("queue_after_move_packets", "packets", Some(2.0), &|_, seen, _| seen.queue()));
    report.add(of_moves("queue_on_link_after_move", "packets", None, &|_, seen, _| seen.on_link));
    report.add(of_moves("queue_at_receiver_after_move", "messages", None, &|_, seen, _| seen.at_receiver as f64));
    report.add(of_moves("pace_after_move_off", "share", Some(NEAR), &|phase, seen, sent| {
        off(sent, seen.steady_ns, seen.ended_ns, phase.pace)
    }));
    report.add(of_moves("windows_until_pace", "windows", Some(f64::from(WINDOWS)), &|phase, seen, sent| {
        reached_ns(sent, seen.begun_ns, seen.ended_ns, phase.pace) / WINDOW.as_secs_f64() / 1e9
    }));
}

/// How far the mean time between two messages of an interval is from a pace, as a share of that.
fn off(sent: &[u64], from_ns: u64, to_ns: u64, pace: Duration) -> f64 {
    let mut within = sent.iter().filter(|at_ns| (from_ns..to_ns).contains(*at_ns));
    let (Some(first), Some(last)) = (within.next(), within.next_back()) else { return f64::NAN };
    let gaps = sent.partition_point(|at_ns| at_ns < last) - sent.partition_point(|at_ns| at_ns < first);
    ((last - first) as f64 / gaps as f64 / (pace.as_secs_f64() * 1e9) - 1.0).abs()
}

/// From a move until the first [`LOOK_NS`] whose mean is near the pace has ended; the whole interval if there is none.
fn reached_ns(sent: &[u64], from_ns: u64, to_ns: u64, pace: Duration) -> f64 {
    let starts = sent.iter().filter(|at_ns| **at_ns >= from_ns && **at_ns + LOOK_NS <= to_ns);
    let first = starts.copied().find(|start_ns| off(sent, *start_ns, start_ns + LOOK_NS, pace) <= NEAR);
    first.map_or(to_ns, |start_ns| start_ns + LOOK_NS).saturating_sub(from_ns) as f64
}

/// What the applications take for a message, changed from outside.
#[derive(Debug, Default)]
struct Works {
    send_us: AtomicU64,
    receive_us: AtomicU64,
    is_over: AtomicBool,
    sent: Mutex<Vec<u64>>,
}

fn run(steady: Duration) -> Result<(Vec<Seen>, Vec<u64>)> {
    let testbed = Testbed::build(Spec { planes: 1, ..Spec::hosts(2) })?;
    let back = LinkSpec::of(15_000_000);
    let emulator = Emulator::between(testbed.host(1), testbed.host(2), [phases()[0].link, back], 7)?;
    let to = SocketAddr::from((Emulator::address(1), 7000));
    let (sender, receiver) = pair(testbed.host(1), testbed.host(2), to, Config::default())?;
    let works = Works::default();
    let seen = thread::scope(|scope| {
        scope.spawn(|| take(&receiver, &works));
        scope.spawn(|| give(&sender, &works));
        let _ends = Stops(&works.is_over);
        phases().map(|phase| observe(&phase, steady, &emulator, [&sender, &receiver], &works))
    });
    let sent = works.sent.into_inner().unwrap_or_else(PoisonError::into_inner);
    for (phase, seen) in phases().iter().zip(&seen) {
        println!(
            "moves     to {:9} pace {:2} ms: mean off by {:5.1} % two windows later, reached after {:5.2} s; longest queue {:.1} packets on the link (its thread was {:.1} ms late at most), {} messages at the receiver; slowest step: {}",
            phase.name,
            phase.pace.as_millis(),
            off(&sent, seen.steady_ns, seen.ended_ns, phase.pace) * 100.0,
            reached_ns(&sent, seen.begun_ns, seen.ended_ns, phase.pace) / 1e9,
            seen.on_link,
            seen.link_late_ns as f64 / 1e6,
            seen.at_receiver,
            seen.slowest,
        );
    }
    Ok((seen.to_vec(), sent))
}

/// Begins a phase, and looks at it when it should have become steady.
fn observe(
    phase: &Phase,
    steady: Duration,
    emulator: &Emulator,
    [sender, receiver]: [&Connection; 2],
    works: &Works,
) -> Seen {
    let micros = |work: Duration| u64::try_from(work.as_micros()).unwrap_or(0);
    emulator.change(0, phase.link);
    works.send_us.store(micros(phase.send_work), Ordering::Relaxed);
    works.receive_us.store(micros(phase.receive_work), Ordering::Relaxed);
    let begun_ns = now_ns();
    thread::sleep(WINDOW * WINDOWS);
    let steady_ns = now_ns();
    emulator.take_longest_queue_bytes(0);
    emulator.take_longest_late_ns();
    let (since, mut at_receiver) = (Instant::now(), 0);
    while since.elapsed() < steady {
        thread::sleep(LOOKS_EVERY);
        at_receiver = receiver.snapshot().map_or(0, |now| now.waiting_here).max(at_receiver);
    }
    let on_link = emulator.take_longest_queue_bytes(0) as f64 / PACKET as f64;
    let link_late_ns = emulator.take_longest_late_ns();
    let slowest = sender.view().and_then(|view| view.bottleneck);
    let slowest = slowest.map_or("none".into(), |(step, ns)| format!("{}, {:.1} ms", step.name(), ns as f64 / 1e6));
    Seen { begun_ns, steady_ns, ended_ns: now_ns(), on_link, at_receiver, link_late_ns, slowest }
}

fn work(us: &AtomicU64, random: &mut SmallRng) {
    let us = us.load(Ordering::Relaxed);
    if us > 0 {
        thread::sleep(about(Duration::from_micros(us), random));
    }
}

fn give(sender: &Connection, works: &Works) {
    let mut random = SmallRng::seed_from_u64(1);
    let message = vec![0; LEVEL.message_len()];
    while !works.is_over.load(Ordering::Relaxed) {
        work(&works.send_us, &mut random);
        works.sent.lock().unwrap_or_else(PoisonError::into_inner).push(now_ns());
        if sender.send(&message).is_err() {
            return;
        }
    }
}

fn take(receiver: &Connection, works: &Works) {
    let mut random = SmallRng::seed_from_u64(2);
    while !works.is_over.load(Ordering::Relaxed) {
        match receiver.recv_timeout(SILENCE) {
            Ok(Some(message)) => receiver.recycle(message),
            Ok(None) => {}
            Err(_) => return,
        }
        work(&works.receive_us, &mut random);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_is_the_longest_one_on_the_link_or_at_the_receiver() {
        let of = |on_link, at_receiver| {
            let slowest = String::new();
            Seen { begun_ns: 0, steady_ns: 0, ended_ns: 0, on_link, at_receiver, link_late_ns: 0, slowest }.queue()
        };
        assert_eq!((of(0.4, 3), of(2.5, 1)), (3.0, 2.5));
    }

    #[test]
    fn pace_is_the_mean_of_the_gaps_and_is_found_when_it_is_reached() {
        let ms = 1_000_000;
        let mut sent: Vec<u64> = (0..200).map(|at| at * 5 * ms).collect();
        let moved = 1000 * ms;
        sent.extend((0..200).map(|at| moved + at * 10 * ms));
        let pace = Duration::from_millis(10);
        assert!(off(&sent, moved, 3000 * ms, pace) < 1e-9);
        assert!((off(&sent, 0, moved, pace) - 0.5).abs() < 1e-9);
        assert!((reached_ns(&sent, moved, 3000 * ms, pace) - 500e6).abs() < 1e-3);
        let late = reached_ns(&sent, moved - 300 * ms, 3000 * ms, pace);
        assert!((500e6..800e6).contains(&late), "{late}");
        assert!((reached_ns(&sent, moved, 3000 * ms, pace * 2) - 2000e6).abs() < 1e-3, "never");
        assert!(off(&sent, 4000 * ms, 5000 * ms, pace).is_nan());
    }
}
