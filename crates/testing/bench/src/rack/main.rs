// SPDX-License-Identifier: Apache-2.0
//! `bench-rack`: two programs that share memory beside kernel TCP over the loopback, in one run (NTSocks §6).
//!
//! | figure | what happens |
//! |---|---|
//! | `rtt8_vs_tcp`, `rtt8_p99_vs_tcp` | 8 bytes there and back through two rings, beside a blocking TCP connection |
//! | `rtt8_vs_busy_tcp` | the same beside a TCP connection whose ends look again and again |
//! | `rtt8_vs_floor` | the same beside one word there and one back in the same memory |
//! | `stream64k_vs_tcp` | writes of 64 KiB as fast as they are read |
//! | `messages2k_vs_tcp` | the same of 2 KiB |
//! | `rtt8_proxy_vs_tcp`, `isolation_us` | the same between two hosts, through proxies ([`proxied`]) |
//! | `made*_shm_vs_origin`, `file*_direct_vs_origin` | bytes that a program makes, or has in a file, by the modes of [`modes`] |
//! | `idle_cpu_share` | CPU time of a program that waits for a message, in shares of a core |
//! | `kvs_*_vs_tcp` | requests to a small key-value store, unmodified programs ([`kvs`]) |
//! | `static_*` | what could serve static programs: notified calls, redirected sockets ([`statics`]) |
//! | `redis_*`, `nginx_*`, `pgbench_*` | programs of others, unmodified ([`apps`]) |
#![forbid(unsafe_code)]

mod apps;
mod kvs;
mod modes;
mod peer;
mod proxied;
mod statics;

use std::{
    io::{Read, Write},
    net::TcpListener,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use fide_rack::{stream, window::Window};
use fide_testbed::{
    figures::{Figure, Goal, Report, Samples, Statistic},
    sys::{bind_to_core, usable_cores},
};

use peer::{Peer, Role, WORD_AT};

/// Bytes there and back.
const SMALL: usize = 8;
const ROUNDS: usize = 5;
/// Of each round: round trips that are measured, and before them some that are not.
const TRIPS: usize = 20_000;
const WARM: usize = 2000;
const STREAMED: Duration = Duration::from_secs(1);
const IDLE: Duration = Duration::from_secs(2);

/// Measures rack sockets and writes target/bench/rack.json.
#[derive(Debug, Parser)]
struct Args {
    /// Say what has moved beyond the spread since an earlier run: its JSON file, or a folder with one of this bench's name.
    #[arg(long, value_name = "OLD")]
    compare: Option<std::path::PathBuf>,
    /// Everything briefly, to see that it works; no number to quote.
    #[arg(long)]
    quick: bool,
    /// Only the programs: not what calls the crate itself.
    #[arg(long)]
    programs: bool,
    /// Only what calls the crate itself.
    #[arg(long, conflicts_with = "programs")]
    calls: bool,
    #[command(subcommand)]
    side: Option<OneSide>,
}

#[derive(Debug, Subcommand)]
enum OneSide {
    /// Only what could serve static programs, which the library does not see (root); writes target/bench/rack-static.json.
    Static,
    /// The other end, as a process of its own: the bench starts it.
    #[command(hide = true)]
    Peer { role: String },
    /// A store, or its client.
    #[command(hide = true)]
    Kvs { side: String },
    /// A monitor for programs that are started by hand, until its standard input ends.
    #[command(hide = true)]
    Monitor { path: std::path::PathBuf },
}

fn main() -> ExitCode {
    let args = Args::parse();
    let result = match &args.side {
        Some(OneSide::Peer { role }) => peer::run(role),
        Some(OneSide::Kvs { side }) => serde_json::from_str(side).map_err(Into::into).and_then(|side| kvs::run(&side)),
        Some(OneSide::Monitor { path }) => monitor(path),
        Some(OneSide::Static) => statics_alone(&args),
        None => run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("bench-rack: {why:#}");
            ExitCode::FAILURE
        }
    }
}

fn monitor(path: &std::path::Path) -> Result<()> {
    let _monitor = fide_rack::meet::monitor::Monitor::start(path)?;
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}

/// Round trips of all rounds, and of each its median.
#[derive(Debug, Default)]
struct Trips {
    all: Samples,
    medians_ns: Vec<f64>,
    p99_ns: Vec<f64>,
}

impl Trips {
    fn add(&mut self, round: &Samples) {
        self.all.absorb(round);
        self.medians_ns.push(round.quantile(0.5) as f64);
        self.p99_ns.push(round.quantile(0.99) as f64);
    }
}

fn trips(count: usize, mut trip: impl FnMut() -> Result<()>) -> Result<Samples> {
    let mut samples = Samples::default();
    for number in 0..WARM + count {
        let begun = Instant::now();
        trip()?;
        if number >= WARM {
            samples.add(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
    }
    Ok(samples)
}

/// Through any two halves.
fn trips_of(count: usize, reads: &mut impl Read, writes: &mut impl Write) -> Result<Samples> {
    let mut answer = [0; SMALL];
    trips(count, || {
        writes.write_all(&[7; SMALL])?;
        Ok(reads.read_exact(&mut answer)?)
    })
}

fn rack_trips(there: usize, count: usize) -> Result<Samples> {
    let (peer, window) = Peer::with_memory(there, Role::Echo)?;
    let (mut reads, mut writes) = stream::halves(window);
    let samples = trips_of(count, &mut reads, &mut writes)?;
    drop((reads, writes));
    peer.end()?;
    Ok(samples)
}

/// A word there, and one back.
fn floor_trips(there: usize, count: usize) -> Result<Samples> {
    let (peer, window) = Peer::with_memory(there, Role::Floor)?;
    let mut number = 0;
    let samples = trips(count, || {
        number += 1;
        window.publish(WORD_AT, number);
        while window.poll(WORD_AT) != number {
            std::hint::spin_loop();
        }
        Ok(())
    })?;
    window.publish(WORD_AT, u64::MAX);
    peer.end()?;
    Ok(samples)
}

fn tcp_trips(there: usize, count: usize, role: Role) -> Result<Samples> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let peer = Peer::connecting(there, role.clone(), listener.local_addr()?)?;
    let (stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let samples = match role {
        Role::BusyTcpEcho => {
            stream.set_nonblocking(true)?;
            let (mut reads, mut writes) = (peer::Busy(&stream), peer::Busy(&stream));
            trips_of(count, &mut reads, &mut writes)?
        }
        _ => trips_of(count, &mut &stream, &mut &stream)?,
    };
    drop(stream);
    peer.end()?;
    Ok(samples)
}

/// Gbit/s of writes of so many bytes; the peer reads as many at a time.
fn streamed(writes: &mut impl Write, bytes: usize, whole: Duration) -> Result<f64> {
    let (message, begun, mut written) = (vec![7; bytes], Instant::now(), 0_usize);
    while begun.elapsed() < whole {
        writes.write_all(&message)?;
        written += bytes;
    }
    Ok(written as f64 * 8.0 / begun.elapsed().as_nanos() as f64)
}

fn rack_streamed(there: usize, bytes: usize, whole: Duration) -> Result<f64> {
    let (peer, window) = Peer::with_memory(there, Role::Sink(bytes))?;
    let (reads, mut writes) = stream::halves(window);
    let rate = streamed(&mut writes, bytes, whole)?;
    drop((reads, writes));
    peer.end()?;
    Ok(rate)
}

fn tcp_streamed(there: usize, bytes: usize, whole: Duration) -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let peer = Peer::connecting(there, Role::TcpSink(bytes), listener.local_addr()?)?;
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let rate = streamed(&mut stream, bytes, whole)?;
    drop(stream);
    peer.end()?;
    Ok(rate)
}

/// The share of a core that a peer takes which waits for a message.
fn idle_share(there: usize, whole: Duration) -> Result<f64> {
    let (peer, window) = Peer::with_memory(there, Role::Echo)?;
    let (mut reads, mut writes) = stream::halves(window);
    trips_of(1, &mut reads, &mut writes)?;
    std::thread::sleep(Duration::from_millis(100));
    let before_ns = peer.computed_ns()?;
    std::thread::sleep(whole);
    let share = (peer.computed_ns()? - before_ns) as f64 / whole.as_nanos() as f64;
    drop((reads, writes));
    peer.end()?;
    Ok(share)
}

/// Pairs of two carriers' values of the same rounds.
fn pairs(of: &[f64], and: &[f64]) -> Vec<(f64, f64)> {
    of.iter().copied().zip(and.iter().copied()).collect()
}

/// What calls the crate.
fn calls(
    report: &mut Report,
    there: usize,
    (rounds, count, whole): (usize, usize, Duration),
    is_quick: bool,
) -> Result<()> {
    let [mut rack, mut floor, mut tcp, mut busy] = [(); 4].map(|()| Trips::default());
    let [mut large, mut large_tcp, mut medium, mut medium_tcp] = [(); 4].map(|()| Vec::new());
    for round in 1..=rounds {
        rack.add(&rack_trips(there, count)?);
        floor.add(&floor_trips(there, count)?);
        tcp.add(&tcp_trips(there, count, Role::TcpEcho)?);
        busy.add(&tcp_trips(there, count, Role::BusyTcpEcho)?);
        large.push(rack_streamed(there, 64 << 10, whole)?);
        large_tcp.push(tcp_streamed(there, 64 << 10, whole)?);
        medium.push(rack_streamed(there, 2 << 10, whole)?);
        medium_tcp.push(tcp_streamed(there, 2 << 10, whole)?);
        println!(
            "round {round} of {rounds}: 8 bytes there and back {:.2} us, the floor {:.2}, TCP {:.1}, busy TCP {:.1}; 64 KiB {:.1} and {:.1} Gbit/s, 2 KiB {:.1} and {:.1}",
            rack.medians_ns[round - 1] / 1e3,
            floor.medians_ns[round - 1] / 1e3,
            tcp.medians_ns[round - 1] / 1e3,
            busy.medians_ns[round - 1] / 1e3,
            large[round - 1],
            large_tcp[round - 1],
            medium[round - 1],
            medium_tcp[round - 1],
        );
    }
    let median = Statistic::P50;
    let time = |name: &str, statistic, baseline: &str, of: &Trips, pairs: Vec<(f64, f64)>, goal| {
        let figure = Figure::time(name, statistic, &rack.all).against(baseline, statistic, &of.all);
        figure.ratio_of_pairs(pairs).goal(Goal::AtMost(goal))
    };
    let p99 = Statistic::P99;
    report.add(time("rtt8_vs_tcp", median, "blocking TCP", &tcp, pairs(&rack.medians_ns, &tcp.medians_ns), 0.049));
    report.add(time("rtt8_p99_vs_tcp", p99, "blocking TCP", &tcp, pairs(&rack.p99_ns, &tcp.p99_ns), 0.044));
    report.add(time("rtt8_vs_floor", median, "one word", &floor, pairs(&rack.medians_ns, &floor.medians_ns), 4.0));
    let figure = Figure::time("rtt8_vs_busy_tcp", median, &rack.all).against("busy TCP", median, &busy.all);
    report.add(figure.ratio_of_pairs(pairs(&rack.medians_ns, &busy.medians_ns)));
    for (name, ours, tcp, goal) in
        [("stream64k_vs_tcp", &large, &large_tcp, 2.0), ("messages2k_vs_tcp", &medium, &medium_tcp, 4.0)]
    {
        let of = |name: &str, rates: &[f64]| Figure { unit: "Gbit/s".into(), ..Figure::rate(name, rates) };
        let figure = of(name, ours).beside("TCP", &of("tcp", tcp));
        report.add(figure.ratio_of_pairs(pairs(ours, tcp)).goal(Goal::AtLeast(goal)));
    }
    proxied::measure(report, [usable_cores()[0], there], (rounds, count), &tcp)?;
    modes::measure(report, there, rounds, whole)?;
    let idle = idle_share(there, if is_quick { IDLE / 10 } else { IDLE })?;
    report.add(Figure::share("idle_cpu_share", idle, 1).goal(Goal::AtMost(0.01)));
    Ok(())
}

/// A core for each end.
fn two_cores() -> Result<[usize; 2]> {
    let cores = usable_cores();
    ensure!(cores.len() >= 2, "each end needs a core of its own, and this machine gives {}", cores.len());
    Ok([cores[0], cores[1]])
}

fn statics_alone(args: &Args) -> Result<()> {
    let mut report = Report::new("rack-static").compared_with(args.compare.as_deref())?;
    statics::measure(&mut report, statics::Much::new(args.quick), two_cores()?);
    Ok(report.conclude()?)
}

fn run(args: &Args) -> Result<()> {
    let cores = two_cores()?;
    let there = cores[1];
    let mut report = Report::new("rack").compared_with(args.compare.as_deref())?;
    let (rounds, count, whole) = if args.quick { (1, TRIPS / 10, STREAMED / 10) } else { (ROUNDS, TRIPS, STREAMED) };
    // Before this end is bound to a core, as programs that it starts would be.
    if !args.calls {
        apps::measure(&mut report, rounds, args.quick)?;
        kvs::measure(&mut report, cores, rounds, count)?;
        statics::measure(&mut report, statics::Much::new(args.quick), cores);
    }
    if !args.programs {
        bind_to_core(None, cores[0]).context("binding this end to a core")?;
        calls(&mut report, there, (rounds, count, whole), args.quick)?;
    }
    report.conclude()?;
    Ok(())
}
