// SPDX-License-Identifier: Apache-2.0
//! `fide pace bench`: how long messages are on their way between two hosts, and why.

mod accept;
mod exchange;
mod text;

use std::{
    process::ExitCode,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::anyhow;
use fide_cli::units;
use fide_pace_socket::{Connection, Offset, SendError, Snapshot, Step, now_ns};
use serde::Serialize;

use super::Way;
use crate::{
    exit::{Done, Failure, UNHEALTHY, USAGE},
    say::show,
};
use exchange::{Exchange, PROBE_LEN, Percentiles, Probe, Tally, ask};

#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Where `fide pace bench --accept` waits, as HOST:PORT
    to: Option<String>,
    /// Be the other end: wait for benches here, as ADDRESS:PORT
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with_all = ["to", "seconds", "every", "receive_every", "size", "json"])]
    accept: Option<String>,
    /// End after the first bench
    #[arg(long, requires = "accept")]
    once: bool,
    #[command(flatten)]
    way: Way,
    /// How long to send
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Send a message each TIME, as an application does that makes so many; without this, as soon as the slowest step takes it
    #[arg(long, value_name = "TIME", value_parser = every)]
    every: Option<Duration>,
    /// The other end's application takes TIME for each message, a fifth more or less
    #[arg(long, value_name = "TIME", value_parser = every)]
    receive_every: Option<Duration>,
    /// Bytes of a message
    #[arg(long, value_name = "BYTES", default_value_t = 1100, value_parser = clap::value_parser!(u32).range(SIZE_MIN..=SIZE_MAX))]
    size: u32,
}

const SIZE_MIN: i64 = PROBE_LEN as i64;
/// Longest message.
const SIZE_MAX: i64 = 1 << 20;
/// Messages that may wait at the sender with --every, unless the user says otherwise: none is made anew while one waits.
const TIMED_QUEUE: u16 = 8;
/// Between two lines, and two asks for what has come.
const PART: Duration = Duration::from_secs(1);
/// Between two looks at the slowest step.
const LOOKS_EVERY: Duration = Duration::from_millis(20);
/// After the last message: until it has arrived, or expired.
const LINGER: Duration = Duration::from_secs(2);
/// How often, and how long each time, the other end is asked for the whole run's figures.
const ASKS_MAX: u32 = 10;
const ANSWER_WITHIN: Duration = Duration::from_millis(500);
/// Such an ask is worth so long to wait for.
const ASK_WITHIN: Duration = Duration::from_secs(5);
/// Times between two messages that are kept, for their percentiles: the first ones.
const TIMES_MAX: usize = 1 << 22;

/// "100us" to "10s".
fn every(text: &str) -> Result<Duration, String> {
    units::duration(text)
        .filter(|time| (Duration::from_micros(10)..=Duration::from_secs(10)).contains(time))
        .ok_or_else(|| format!("'{text}' is not a time from 10us to 10s; use a number and us, ms or s, such as 20ms"))
}

/// How often a step was the slowest, of the looks at it.
#[derive(Debug, Clone, Copy, Default)]
struct Slowest([u32; 5]);

impl Slowest {
    fn note(&mut self, step: Option<Step>) {
        if let Some(step) = step {
            self.0[step as usize] += 1;
        }
    }

    /// Of those that were it: the share of time, the most first.
    fn shares(&self) -> Vec<(Step, f64)> {
        let all: u32 = self.0.iter().sum();
        let mut shares: Vec<_> = Step::ALL
            .into_iter()
            .zip(self.0)
            .filter(|(_, count)| *count > 0)
            .map(|(step, count)| (step, f64::from(count) / f64::from(all)))
            .collect();
        shares.sort_by(|a, b| b.1.total_cmp(&a.1));
        shares
    }
}

/// What is known of a part of the run.
#[derive(Debug, Serialize)]
struct Part {
    /// Seconds since the beginning, at its end.
    at_s: f64,
    sent: u64,
    bottleneck: Option<&'static str>,
    bottleneck_pace_ns: Option<u64>,
    network_bytes_per_s: Option<u64>,
    round_trip_us: Option<u64>,
    #[serde(flatten)]
    tally: Tally,
}

/// The end that sends, while it does.
#[derive(Debug, Default)]
struct Sent {
    messages: u64,
    /// Those that found no room, with --every.
    refused: u64,
    between_us: Vec<u32>,
    last_ns: Option<u64>,
}

/// What both threads know.
#[derive(Debug, Default)]
struct Looks {
    whole: Slowest,
    part: Slowest,
}

pub(super) fn run(arguments: &Arguments) -> Done {
    match (&arguments.accept, &arguments.to) {
        (Some(at), _) => accept::run(at, &arguments.way, arguments.once),
        (None, Some(to)) => send(to, arguments),
        (None, None) => Err(Failure::new(USAGE, anyhow!("give HOST:PORT, or --accept ADDRESS:PORT at the other end"))),
    }
}

fn send(to: &str, arguments: &Arguments) -> Done {
    let queue = if arguments.every.is_some() { TIMED_QUEUE } else { 1 };
    let connection = arguments.way.connect(to, queue)?;
    let stops = Arc::new(AtomicBool::new(false));
    let of_handler = Arc::clone(&stops);
    // There is one handler in a process, and this is the only command in it. The second signal ends it at once.
    let _ = ctrlc::set_handler(move || {
        if of_handler.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    });
    let looks = Mutex::new(Looks::default());
    let (answers, taken) = mpsc::channel();
    let begun = Instant::now();
    let (sent, parts, tally) = thread::scope(|scope| {
        let (connection, looks, stops) = (&connection, &looks, &*stops);
        scope.spawn(move || {
            // Until the connection is over.
            while let Ok(message) = connection.recv() {
                if let Some(Exchange::Answer { number, tally }) = Exchange::read(&message.bytes) {
                    let _ = answers.send((number, tally));
                }
                connection.recycle(message);
            }
        });
        let ended = AtomicBool::new(false);
        let result = thread::scope(|scope| {
            scope.spawn(|| look(connection, looks, &ended));
            let result = probes(connection, arguments, begun, stops, looks, &taken);
            ended.store(true, Ordering::Relaxed);
            result
        });
        let result = result.and_then(|(sent, parts)| Ok((sent, parts, whole(connection, &taken)?)));
        if result.is_err() {
            connection.close("the bench has failed");
        }
        result.inspect(|_| connection.close(""))
    })?;
    let looks = looks.into_inner().unwrap_or_else(PoisonError::into_inner);
    let whole = Whole::new(arguments, sent, parts, tally, &looks.whole, &connection);
    if arguments.way.json {
        let value = serde_json::to_string(&whole).map_err(anyhow::Error::from)?;
        show!("{value}")?;
    } else {
        show!("{}", text::whole(&whole))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Looks at the slowest step while messages are sent.
fn look(connection: &Connection, looks: &Mutex<Looks>, ended: &AtomicBool) {
    while !ended.load(Ordering::Relaxed) {
        let step = connection.view().and_then(|view| view.bottleneck).map(|(step, _)| step);
        let mut looks = looks.lock().unwrap_or_else(PoisonError::into_inner);
        looks.whole.note(step);
        looks.part.note(step);
        drop(looks);
        thread::sleep(LOOKS_EVERY);
    }
}

/// Sends for as long as was asked for, and shows each part.
fn probes(
    connection: &Connection,
    arguments: &Arguments,
    begun: Instant,
    stops: &AtomicBool,
    looks: &Mutex<Looks>,
    answers: &mpsc::Receiver<(u32, Tally)>,
) -> Result<(Sent, Vec<Part>), Failure> {
    let mut message = vec![0; arguments.size as usize];
    let (mut sent, mut parts, mut sent_before) = (Sent::default(), Vec::new(), 0);
    let (mut part, mut due) = (0_u32, begun);
    let length = Duration::from_secs(arguments.seconds.into());
    while begun.elapsed() < length && !stops.load(Ordering::Relaxed) {
        if let Some(every) = arguments.every {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            due += every;
        }
        sent.make(connection, &mut message, arguments)?;
        while let Ok((number, tally)) = answers.try_recv() {
            let slowest = std::mem::take(&mut looks.lock().unwrap_or_else(PoisonError::into_inner).part);
            let new = Part::new(begun, sent.messages - sent_before, &slowest, tally, connection);
            sent_before = sent.messages;
            if !arguments.way.json && number > 0 {
                show!("{}", text::part(&new))?;
            }
            parts.push(new);
        }
        if begun.elapsed() >= PART * (part + 1) {
            part += 1;
            // If it is lost, so is this part's line; its messages count in the whole run.
            match connection.try_send(&ask(part, false), None) {
                Err(SendError::Closed(why)) => return Err(anyhow::Error::from(SendError::Closed(why)).into()),
                Ok(()) | Err(SendError::Message(_)) => {}
            }
        }
    }
    Ok((sent, parts))
}

impl Sent {
    /// Makes the next message and sends it.
    fn make(&mut self, connection: &Connection, message: &mut [u8], arguments: &Arguments) -> Result<(), Failure> {
        let is_timed = arguments.every.is_some();
        let now_ns = now_ns();
        // A connection that stands has had a first exchange; until that is known here, the other end's word counts.
        let clock = connection.peer_clock().unwrap_or(Offset { us: 0, uncertainty_us: u64::MAX });
        let work_us = arguments.receive_every.map_or(0, |work| u32::try_from(work.as_micros()).unwrap_or(u32::MAX));
        Probe { number: self.messages, made_us: now_ns / 1000, clock, work_us }.write(message);
        let result = if is_timed { connection.try_send(message, None) } else { connection.send(message) };
        match result {
            Ok(()) => {}
            // The step before is too slow: an application would drop it, or make a newer one.
            Err(SendError::Message(_)) if is_timed => {
                self.refused += 1;
                return Ok(());
            }
            Err(why) => return Err(Failure::new(UNHEALTHY, why)),
        }
        self.messages += 1;
        if let Some(last_ns) = self.last_ns.replace(now_ns)
            && self.between_us.len() < TIMES_MAX
        {
            self.between_us.push(u32::try_from((now_ns - last_ns) / 1000).unwrap_or(u32::MAX));
        }
        Ok(())
    }
}

/// Asks for the figures of the whole run until they come.
fn whole(connection: &Connection, answers: &mpsc::Receiver<(u32, Tally)>) -> Result<Tally, Failure> {
    connection.finish(LINGER);
    for number in (u32::MAX - ASKS_MAX..u32::MAX).rev() {
        // Nothing is measured behind it any more.
        connection.send_within(&ask(number, true), Some(ASK_WITHIN)).map_err(|why| Failure::new(UNHEALTHY, why))?;
        let until = Instant::now() + ANSWER_WITHIN;
        while let Ok((answered, tally)) = answers.recv_timeout(until.saturating_duration_since(Instant::now())) {
            if answered >= u32::MAX - ASKS_MAX {
                return Ok(tally);
            }
        }
    }
    Err(Failure::new(
        UNHEALTHY,
        anyhow!("the other end has not said what came; does `fide pace bench --accept` run there?"),
    ))
}

impl Part {
    fn new(begun: Instant, sent: u64, slowest: &Slowest, tally: Tally, connection: &Connection) -> Self {
        let now = connection.snapshot().unwrap_or_default();
        Self {
            at_s: begun.elapsed().as_secs_f64(),
            sent,
            bottleneck: slowest.shares().first().map(|(step, _)| step.name()),
            bottleneck_pace_ns: now.there.bottleneck().map(|(_, ns)| ns),
            network_bytes_per_s: now.network_bytes_per_s,
            round_trip_us: now.round_trip_us,
            tally,
        }
    }
}

/// The least time that the messages which came could have taken: each as long as the slowest step takes for it (X-PACE §V-B,
/// equations 3 and 4).
#[derive(Debug, PartialEq, Serialize)]
struct Optimum {
    /// None: neither application has a time of its own, and of the network nothing is known.
    optimum_us: Option<u64>,
    whole_over_optimum: Option<f64>,
    /// Whose time it is.
    #[serde(skip)]
    of: &'static str,
}

impl Optimum {
    /// The applications' times are known beforehand. The network's is what it is believed to take, for the bytes of messages alone.
    fn new(arguments: &Arguments, tally: &Tally, network_bytes_per_s: Option<u64>) -> Self {
        let [send, receive] =
            [arguments.every, arguments.receive_every].map(|time| time.map(|time| time.as_secs_f64()));
        let network = network_bytes_per_s.filter(|rate| *rate > 0).map(|rate| f64::from(arguments.size) / rate as f64);
        let steps = [("sender", send), ("network", network), ("receiver", receive)];
        let steps = steps.into_iter().filter_map(|(of, time)| Some((of, time?)));
        let slowest = steps.max_by(|one, other| one.1.total_cmp(&other.1)).filter(|_| tally.delivered > 0);
        let optimum_s = slowest.map(|(_, each_s)| each_s * tally.delivered as f64);
        Self {
            optimum_us: optimum_s.map(|optimum_s| (optimum_s * 1e6) as u64),
            whole_over_optimum: optimum_s.map(|optimum_s| tally.whole_us as f64 / 1e6 / optimum_s),
            of: slowest.map_or("", |(of, _)| of),
        }
    }
}

/// All of a run.
#[derive(Debug, Serialize)]
struct Whole {
    seconds: f64,
    size: u32,
    deadline_ns: u64,
    sent: u64,
    /// Messages that found no room, with --every; they were not sent.
    refused: u64,
    delivered: u64,
    lost: u64,
    /// Of those: here when they expired.
    late: u64,
    delivery: Percentiles,
    /// Each delivery time is wrong by so much at most.
    uncertainty_us: u64,
    between_sent: Percentiles,
    between_delivered: Percentiles,
    /// From when the first message was made until the last one came.
    whole_us: u64,
    #[serde(flatten)]
    optimum: Optimum,
    /// The share of time in which each step was the slowest.
    bottleneck: serde_json::Map<String, serde_json::Value>,
    network_bytes_per_s: Option<u64>,
    round_trip_us: Option<u64>,
    shortest_us: Option<u64>,
    lost_packets: u64,
    packets: u64,
    redundancy: u64,
    again: u64,
    parts: Vec<Part>,
}

impl Whole {
    fn new(
        arguments: &Arguments,
        mut sent: Sent,
        parts: Vec<Part>,
        tally: Tally,
        slowest: &Slowest,
        connection: &Connection,
    ) -> Self {
        let now: Snapshot = connection.snapshot().unwrap_or_default();
        let span_us: u64 = sent.between_us.iter().map(|us| u64::from(*us)).sum();
        let shares = slowest.shares().into_iter().map(|(step, share)| (step.name().to_owned(), share.into()));
        Self {
            seconds: span_us as f64 / 1e6,
            size: arguments.size,
            deadline_ns: now.deadline_ns,
            sent: sent.messages,
            refused: sent.refused,
            delivered: tally.delivered,
            lost: sent.messages.saturating_sub(tally.delivered),
            late: tally.late,
            delivery: tally.delivery,
            uncertainty_us: tally.uncertainty_us,
            between_sent: Percentiles::of(&mut sent.between_us),
            between_delivered: tally.between,
            whole_us: tally.whole_us,
            optimum: Optimum::new(arguments, &tally, now.network_bytes_per_s),
            bottleneck: shares.collect(),
            network_bytes_per_s: now.network_bytes_per_s,
            round_trip_us: now.round_trip_us,
            shortest_us: now.shortest_us,
            lost_packets: now.lost_packets,
            packets: now.lost_packets + now.came_packets,
            redundancy: now.counts.sent.redundancy,
            again: now.counts.sent.again,
            parts,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Bench {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn optimum(words: &[&str], network_bytes_per_s: Option<u64>) -> Optimum {
        let words = ["bench", "host:1", "--key", "key", "--size", "1000"].iter().chain(words);
        let tally = Tally { delivered: 2000, whole_us: 11_850_000, ..Tally::default() };
        Optimum::new(&Bench::parse_from(words).arguments, &tally, network_bytes_per_s)
    }

    #[test]
    fn optimum_is_the_slowest_steps_time_for_each_message() {
        // The paper's first scenario.
        let receiver = optimum(&["--receive-every", "5ms"], Some(2_000_000));
        assert_eq!((receiver.optimum_us, receiver.of), (Some(10_000_000), "receiver"));
        assert!((receiver.whole_over_optimum.unwrap() - 1.185).abs() < 1e-9);
        let network = optimum(&["--every", "2ms", "--receive-every", "1ms"], Some(200_000));
        assert_eq!((network.optimum_us, network.of), (Some(10_000_000), "network"));
        let sender = optimum(&["--every", "2ms"], None);
        assert_eq!((sender.optimum_us, sender.of), (Some(4_000_000), "sender"));
        assert_eq!(optimum(&[], None), Optimum { optimum_us: None, whole_over_optimum: None, of: "" });
    }
}
