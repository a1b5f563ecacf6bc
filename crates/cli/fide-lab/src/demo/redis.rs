// SPDX-License-Identifier: Apache-2.0
//! `fide-lab demo redis`: stock redis-servers with the module on several hosts, under load. Their leader is
//! killed, then the next one; one is stopped, one is cut off. Nothing that was acknowledged may be lost.

mod chart;
mod connection;
mod cut_off;
mod faults;
mod gap;
mod load;
mod outcome;
mod page;
mod sample;
mod shared;
mod site;
mod text;
mod view;
mod writers;

use std::{path::PathBuf, process::ExitCode, sync::atomic::Ordering::Relaxed, thread, time::Duration};

use anyhow::{Context, anyhow, bail, ensure};
use fide_sys::clock::mono_ns;
use fide_testbed::{Stops, figures::Machine};

use super::{interrupted, make_out, say};
use fide_cli::exit::{Done, Failure, UNHEALTHY, UNSUPPORTED};
use fide_cli::say::tell;
use gap::Fault;
use outcome::Outcome;
use sample::Samples;
use shared::Shared;
use site::Site;
use view::View;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Leaders to kill (kill -9), before one is stopped and one is cut off
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=100))]
    kills: u16,
    /// Hosts, each with an agent and a redis-server
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(3..=5))]
    hosts: u16,
    /// Clients that write numbers, and wait for each acknowledgement; redis-benchmark runs beside them
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=32))]
    writers: u16,
    /// Protocol by which the servers agree
    #[arg(long, value_enum, default_value_t)]
    protocol: Protocol,
    /// Milliseconds of load before each loss of a leader, and after the last
    #[arg(long, value_name = "MS", default_value_t = 3000, value_parser = clap::value_parser!(u64).range(50..=60_000))]
    between: u64,
    /// Directory for redis.html and its drawing
    #[arg(long, value_name = "DIR", default_value = "target/demo")]
    out: PathBuf,
    /// Print everything as one JSON document on stdout, and nothing else there; docs/develop/redis-demo-json.md
    /// describes its fields
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, Default, clap::ValueEnum)]
enum Protocol {
    #[default]
    Hsuc,
    Huc,
}

impl Protocol {
    fn name(self) -> &'static str {
        match self {
            Self::Hsuc => "hsuc",
            Self::Huc => "huc",
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Done {
    fide_testbed::supported().map_err(|error| Failure::new(UNSUPPORTED, anyhow::Error::from(error)))?;
    let programs = site::programs().map_err(|error| Failure::new(UNSUPPORTED, error))?;
    make_out(&arguments.out)?;
    ctrlc::set_handler(interrupted).context("waiting for an interrupt")?;
    say::line(&format!(
        "{} hosts in network namespaces, each with an agent and a stock redis-server with the module; {} clients of \
         redis-benchmark, and {} that number their writes.\n\
         {} leaders are killed with kill -9, one is stopped, one is cut off; each comes back before the next is lost.\n\
         Nothing outside these namespaces is touched, and all of it is removed at the end. It takes about {} s.",
        arguments.hosts,
        load::CLIENTS,
        arguments.writers,
        arguments.kills,
        (5000 + (faults_of(arguments) + 1) * (arguments.between + 600)) / 1000,
    ));
    let mut site = Site::start(programs, arguments.hosts.into(), arguments.protocol.name())?;
    let outcome = lose_leaders(&mut site, arguments).map_err(|why| site.explain(&why))?;
    finish(arguments, &outcome)
}

fn lose_leaders(site: &mut Site, arguments: &Arguments) -> anyhow::Result<Outcome> {
    let (shared, samples) = (Shared::new(site.places()?), Samples::default());
    let view = View::new(&samples);
    let clients = site.clients().clone();
    let faults = [vec![Fault::Killed; arguments.kills.into()], vec![Fault::Stopped, Fault::Cut]].concat();
    let between = Duration::from_millis(arguments.between);
    let begun_ns = mono_ns();
    let (mut gaps, mut cut_off) = (Vec::new(), Vec::new());
    let (mut written, ended_ns) = thread::scope(|scope| -> anyhow::Result<_> {
        let stops = Stops(&shared.stop);
        let ended = |_| anyhow!("a client has panicked");
        let (shared, clients, samples, view) = (&shared, &clients, &samples, &view);
        let mut writers: Vec<_> = (0..usize::from(arguments.writers))
            .map(|number| scope.spawn(move || clients.run_in(|| writers::run(shared, number))))
            .collect();
        let load = scope.spawn(move || load::run(shared, clients));
        scope.spawn(move || sample::run(shared, samples));
        scope.spawn(move || view.run(shared));
        for fault in faults {
            thread::sleep(between);
            if let Some(at) = writers.iter().position(thread::ScopedJoinHandle::is_finished) {
                writers.remove(at).join().map_err(ended)???;
                bail!("client {at} has written all that it may before the end; give less --between or --kills");
            }
            let (gap, seen) = faults::lose(site, shared, fault, view)?;
            gaps.push(gap);
            cut_off.extend(seen);
        }
        thread::sleep(between);
        let ended_ns = mono_ns();
        drop(stops);
        let mut written = Vec::new();
        for writer in writers {
            written.push(writer.join().map_err(ended)???);
        }
        let starts = load.join().map_err(ended)??;
        ensure!(starts > faults_of(arguments), "redis-benchmark was started {starts} times, too few for each leader");
        Ok((written, ended_ns))
    })?;
    view.say("the load has ended; the servers' data is compared");
    let digests = site.digests()?;
    for one in &mut written {
        for host in site.running() {
            one.check(host, site.number(host, &one.key)?);
        }
    }
    let lost: Vec<_> = gaps.iter().map(|gap| gap.stopped_ns..gap.acknowledged_ns).collect();
    Ok(Outcome {
        machine: Machine::here(),
        protocol: arguments.protocol.name(),
        begun_ns,
        ended_ns,
        gaps,
        rates: samples.now().rates,
        written,
        asked_again: shared.asked_again.load(Relaxed),
        longest_pause_ns: shared.longest_pause_ns(&lost),
        cut_off,
        digests,
    })
}

/// Leaders that are lost.
fn faults_of(arguments: &Arguments) -> u64 {
    u64::from(arguments.kills) + 2
}

fn finish(arguments: &Arguments, outcome: &Outcome) -> Done {
    let page = arguments.out.join("redis.html");
    page::write(&page, outcome)?;
    let page = page.display().to_string();
    let text = format!("{}\n{}", text::drawing(outcome), text::table(&outcome.gaps));
    if arguments.json {
        say::line(&format!("\n{text}"));
        tell!("{:#}", outcome.to_json(&page));
    } else {
        tell!("\n{text}");
        let pause_ms = outcome.longest_pause_ns as f64 / 1e6;
        tell!("the longest time without an acknowledged write otherwise: {pause_ms:.0} ms\n");
        for check in outcome.checks() {
            tell!("{} {}: {}", if check.held { "held:        " } else { "DID NOT HOLD:" }, check.name, check.seen);
        }
        tell!("with drawings: {page}");
    }
    if outcome.has_held() {
        return Ok(ExitCode::SUCCESS);
    }
    let broken: Vec<String> = outcome
        .checks()
        .iter()
        .filter(|check| !check.held)
        .map(|check| format!("{} ({})", check.name, check.seen))
        .collect();
    say::line(&format!("DID NOT HOLD: {}", broken.join("; ")));
    Ok(ExitCode::from(UNHEALTHY))
}
