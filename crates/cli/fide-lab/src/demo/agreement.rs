// SPDX-License-Identifier: Apache-2.0
//! `fide-lab demo agreement`: a replicated counter on five hosts under load. Its leader is killed, then the
//! next one, until one replica is left.

mod chart;
mod clients;

use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use fide_counter::{Order, Protocol, Replicas, Reported, Spec};
use fide_sys::clock::mono_ns;
use fide_testbed::figures::{Figure, Goal, Report, Samples, Statistic};
use fide_testbed::{Agents, AgentsSpec, Spec as BedSpec, Testbed};
use serde::Serialize;
use serde_json::json;

use super::{interrupted, make_out, say};
use clients::Clients;
use fide_cli::exit::{Done, Failure, UNHEALTHY, UNSUPPORTED};
use fide_cli::say::tell;

/// Hidden first argument of this program that makes it a replica.
pub(crate) const REPLICA: &str = "__replica";
/// Instances under way.
const WINDOW: u64 = 32;
/// How long the next leader may take to decide, and how long the answers to the last requests may take.
const LIMIT: Duration = Duration::from_secs(20);

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Hosts, each with a replica
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(2..=8))]
    hosts: u16,
    /// Clients, each with one request at a time
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024))]
    clients: u32,
    /// Protocol by which they agree: huc takes one heartbeat for each decision
    #[arg(long, value_enum, default_value_t)]
    protocol: Protocol,
    /// Milliseconds of load before each kill, and after the last
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(50..=60_000))]
    between: u64,
    /// Directory for the drawing
    #[arg(long, value_name = "DIR", default_value = "target/demo")]
    out: PathBuf,
    /// Print every figure as JSON on stdout, and nothing else there
    #[arg(long)]
    json: bool,
}

/// The stages after a leader was killed, CLOCK_MONOTONIC ns, which all hosts of the testbed share.
#[derive(Debug, Clone, Copy, Serialize)]
struct Gap {
    leader: u16,
    next: u16,
    killed_ns: u64,
    /// The next leader's program knew of the death.
    died_ns: u64,
    /// The next leader had decided everything that its predecessor may have decided.
    leads_ns: u64,
    /// A client sent its first request to the next leader.
    asked_ns: u64,
    /// The next leader had counted a request.
    decided_ns: u64,
}

impl Gap {
    const STAGES: [&str; 4] = ["detect", "level", "lead", "decide"];

    /// How long each stage took.
    fn stages_ns(&self) -> [u64; 4] {
        let ends = [self.died_ns, self.leads_ns, self.asked_ns, self.decided_ns];
        let mut from = self.killed_ns;
        ends.map(|end| {
            let stage = end.saturating_sub(from);
            from = from.max(end);
            stage
        })
    }

    fn total_ns(&self) -> u64 {
        self.decided_ns.saturating_sub(self.killed_ns)
    }
}

/// The outcome of the demo.
struct Outcome {
    begun_ns: u64,
    ended_ns: u64,
    gaps: Vec<Gap>,
    /// When requests were counted (CLOCK_MONOTONIC ns), and how many at that time.
    counted: Vec<(u64, u32)>,
    /// Answered requests, and the counter of the last replica.
    answered: u64,
    counter: u64,
    asked_again: u64,
}

pub(crate) fn run(arguments: &Arguments) -> Done {
    make_out(&arguments.out)?;
    fide_testbed::supported().map_err(|error| Failure::new(UNSUPPORTED, anyhow::Error::from(error)))?;
    ctrlc::set_handler(interrupted).context("waiting for an interrupt")?;
    say::line(&format!(
        "{} hosts in network namespaces, an agent and a replica of a counter on each, {} clients; they agree by {}.\n\
         The leader is killed with kill -9, then the next one, until one replica is left.\n\
         Nothing outside these namespaces is touched, and all of it is removed at the end.",
        arguments.hosts,
        arguments.clients,
        arguments.protocol.name()
    ));
    let outcome = kill_all(arguments)?;
    finish(arguments, &outcome)
}

fn kill_all(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let bed = Testbed::build(BedSpec { hosts: arguments.hosts.into(), ..BedSpec::default() })?;
    let this = std::env::current_exe().context("finding this program")?;
    // The kernel sees the kills here, so the timeout may be long: no host should be excluded because this
    // machine did not run it for a moment.
    let spec = AgentsSpec {
        program: vec![fide_testbed::find_binary("fide")?],
        timeout_us: Some(60_000),
        ..AgentsSpec::default()
    };
    let agents = Agents::start(&bed, spec)?;
    let spec = Spec {
        program: vec![this, PathBuf::from(REPLICA)],
        group: "counter".to_owned(),
        protocol: arguments.protocol,
        window: WINDOW,
    };
    let mut replicas = Replicas::start(bed.hosts(), &agents, spec).with_context(|| replica_logs(&agents, arguments))?;
    say::line("the hosts have founded their group; the clients begin");

    let mut clients = Clients::new(arguments.clients);
    let mut gaps = Vec::new();
    let begun_ns = mono_ns();
    let first = replicas.nodes[0].host;
    clients.led_by(first, &mut replicas)?;
    let between = Duration::from_millis(arguments.between);
    let mut leader = first;
    loop {
        clients.serve(&mut replicas, Instant::now() + between)?;
        if replicas.nodes.len() == 1 {
            break;
        }
        let gap = kill(leader, &mut replicas, &mut clients).with_context(|| replica_logs(&agents, arguments))?;
        let stages = gap.stages_ns();
        say::line(&format!(
            "h{} killed; h{} decides after {:>6} us ({})",
            gap.leader,
            gap.next,
            gap.total_ns() / 1000,
            Gap::STAGES
                .iter()
                .zip(stages)
                .map(|(name, ns)| format!("{name} {}", ns / 1000))
                .collect::<Vec<_>>()
                .join(", ")
        ));
        leader = gap.next;
        gaps.push(gap);
    }
    let ended_ns = mono_ns();
    clients.stop(&mut replicas, Instant::now() + LIMIT)?;
    let last = replicas.node(leader).context("the last replica is gone")?;
    last.order(&Order::State { state: true })?;
    let counter = loop {
        if let Reported::State { counter, .. } = replicas.wait("the counter")?.1 {
            break counter;
        }
    };
    Ok(Outcome {
        begun_ns,
        ended_ns,
        gaps,
        counter,
        answered: clients.answered(),
        asked_again: clients.asked_again,
        counted: clients.counted,
    })
}

/// Kills the leader, and serves the clients until the next leader has counted a request.
fn kill(leader: u16, replicas: &mut Replicas, clients: &mut Clients) -> anyhow::Result<Gap> {
    let at = replicas.nodes.iter().position(|node| node.host == leader).context("the leader is gone")?;
    let mut dead = replicas.nodes.remove(at);
    let killed_ns = dead.kill()?;
    clients.leaderless();
    let mut gap = Gap { leader, next: 0, killed_ns, died_ns: 0, leads_ns: 0, asked_ns: 0, decided_ns: 0 };
    let until = Instant::now() + LIMIT;
    while gap.decided_ns == 0 {
        let Some((host, reported)) = replicas.poll(until) else {
            bail!("nobody has decided anything {LIMIT:?} after h{leader} was killed");
        };
        match reported {
            Reported::Leads { died_ns, ns, .. } if host != leader => {
                gap = Gap { next: host, died_ns, leads_ns: ns, ..gap };
                clients.led_by(host, replicas)?;
                gap.asked_ns = mono_ns();
            }
            Reported::Counted { ns, .. } if host == gap.next => {
                gap.decided_ns = ns;
                // The replica has the same clock; a report from before it was asked is about other requests.
                gap.asked_ns = gap.asked_ns.min(ns);
                clients.take(host, &reported, replicas)?;
            }
            reported => clients.take(host, &reported, replicas)?,
        }
    }
    drop(dead);
    Ok(gap)
}

/// The output of replicas before they failed.
fn replica_logs(agents: &Agents, arguments: &Arguments) -> String {
    let log = |host: usize| {
        let text = std::fs::read_to_string(agents.dir(host).join("replica.log")).unwrap_or_default();
        text.lines().map(|line| format!("h{host}: {line}\n")).collect::<String>()
    };
    format!("the replicas said:\n{}", (1..=usize::from(arguments.hosts)).map(log).collect::<String>())
}

fn finish(arguments: &Arguments, outcome: &Outcome) -> Done {
    let mut report = Report::new("demo-agreement");
    let mut total = Samples::default();
    let mut stages = vec![Samples::default(); Gap::STAGES.len()];
    for gap in &outcome.gaps {
        total.add(gap.total_ns());
        gap.stages_ns().iter().zip(&mut stages).for_each(|(ns, samples)| samples.add(*ns));
    }
    report.add(
        Figure::time("leader_killed", Statistic::P50, &total).remark("kill -9 to the next decision that a client sees"),
    );
    for (name, samples) in Gap::STAGES.iter().zip(&stages) {
        report.add(Figure::time(name, Statistic::P50, samples));
    }
    let (answered, counter) = (outcome.answered, outcome.counter);
    let lost = answered.saturating_sub(counter);
    let twice = counter.saturating_sub(answered);
    report.add(Figure::count("lost", lost, answered).goal(Goal::AtMost(0.0)));
    report.add(Figure::count("twice", twice, answered).goal(Goal::AtMost(0.0)));
    let chart = arguments.out.join("agreement.svg");
    std::fs::write(&chart, chart::draw(outcome)?).with_context(|| format!("writing {}", chart.display()))?;
    if arguments.json {
        let json = json!({
            "figures": report,
            "gaps": outcome.gaps.iter().map(|gap| {
                let stages = Gap::STAGES.iter().zip(gap.stages_ns());
                let stages: serde_json::Map<_, _> = stages.map(|(name, ns)| (format!("{name}_us"), json!(ns as f64 / 1e3))).collect();
                json!({"leader": format!("h{}", gap.leader), "next": format!("h{}", gap.next), "total_us": gap.total_ns() as f64 / 1e3, "stages": stages})
            }).collect::<Vec<_>>(),
            "counter": counter,
            "answered": answered,
            "asked_again": outcome.asked_again,
            "chart": chart,
        });
        tell!("{}", serde_json::to_string_pretty(&json).context("writing JSON")?);
    } else {
        tell!("\n{report}");
        tell!(
            "{answered} requests were answered, {} of them asked again after a leader's death; the last replica counts {counter}",
            outcome.asked_again
        );
        tell!("decisions over time, with each gap: {}", chart.display());
    }
    report.write().context("writing the figures")?;
    Ok(if lost + twice > 0 { ExitCode::from(UNHEALTHY) } else { ExitCode::SUCCESS })
}
