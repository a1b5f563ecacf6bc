// SPDX-License-Identifier: Apache-2.0
//! No process dies: false verdicts of Fide under load, and its cost at rest.

use crate::Args;
use crate::fide_side::{await_up, connect, start_agents, status};
use anyhow::Context;
use fide_client::{Client, Event, Wanted, now_ns};
use fide_testbed::figures::{Figure, Goal, Report};
use fide_testbed::sys::{cpu_time_ns, usable_cores};
use fide_testbed::{Agents, CpuLoad, FloodSpec, MAX_FLOOD_PACKETS, Spec, Testbed, Victim, VictimSpec};
use std::time::{Duration, Instant};

const HOSTS: usize = 3;
/// Rate of every port; the floods send more, so that its queue is full.
const PORT_MBIT: u32 = 100;
const FLOOD_MBIT: u32 = 110;
/// Time between two reads of the programs' events.
const LOOK: Duration = Duration::from_millis(100);
const CPU_GOAL_PERCENT: f64 = 5.0;
/// Start-up is over by then.
const CPU_SETTLE: Duration = Duration::from_secs(2);
const COUNTERS: [&str; 4] = ["verdicts", "stalls", "suspicions_withheld", "heartbeats_skipped"];

/// Both figures.
pub(crate) fn measure(args: &Args, report: &mut Report) {
    let goal = Goal::AtMost(0.0);
    let name = "false_verdicts_under_load";
    match false_verdicts(name, Duration::from_secs(args.load_s.into())) {
        Ok(figure) => report.add(figure.goal(goal)),
        Err(why) => report.add(Figure::unmeasured(name, "count", format!("{why:#}")).goal(goal)),
    }
    let goal = Goal::AtMost(CPU_GOAL_PERCENT);
    let name = "agent_cpu_share";
    match cpu_share(name, Duration::from_secs(args.idle_s.into())) {
        Ok(figure) => report.add(figure.goal(goal)),
        Err(why) => report.add(Figure::unmeasured(name, "%", format!("{why:#}")).goal(goal)),
    }
}

/// A program on every host that watches the other hosts and a process on each.
struct Programs {
    clients: Vec<Client>,
    _victims: Vec<Victim>,
}

impl Programs {
    fn start(bed: &Testbed, agents: &Agents) -> anyhow::Result<Programs> {
        let mut clients = Vec::new();
        let mut victims = Vec::new();
        for host in bed.hosts() {
            let mut client = connect(agents, host.index())?;
            let victim = Victim::spawn(Some(host), &VictimSpec::default())?;
            client.join_pid("program", victim.pid(), Duration::ZERO)?;
            clients.push(client);
            victims.push(victim);
        }
        for (client, me) in clients.iter_mut().zip(bed.hosts()) {
            for host in bed.hosts().iter().filter(|h| h.index() != me.index()) {
                for target in [format!("@{}", host.name()), format!("program@{}", host.name())] {
                    let monitor = client.monitor(&target, Wanted::default())?;
                    await_up(client, monitor.id)?;
                }
            }
        }
        Ok(Programs { clients, _victims: victims })
    }
}

fn false_verdicts(name: &str, stretch: Duration) -> anyhow::Result<Figure> {
    let bed = Testbed::build(Spec { hosts: HOSTS, rate_mbit: Some(PORT_MBIT), ..Spec::default() })?;
    let agents = start_agents(&bed)?;
    let mut programs = Programs::start(&bed, &agents)?;
    let before = counters(&agents)?;
    let duration_ns = stretch.as_nanos() as u64;
    let mut floods = Vec::new();
    for plane in 0..bed.planes() {
        for from in 1..=HOSTS {
            let to = from % HOSTS + 1;
            let max_packets = MAX_FLOOD_PACKETS;
            floods.push(bed.flood(FloodSpec { from, to, plane, rate_mbit: FLOOD_MBIT, duration_ns, max_packets })?);
        }
    }
    let hogs = CpuLoad::start(&usable_cores(), 1, duration_ns)?;
    let start = Instant::now();
    let mut verdicts = Vec::new();
    let (mut paths, mut lost) = (0u64, 0);
    while start.elapsed() < stretch {
        std::thread::sleep(LOOK);
        for client in &mut programs.clients {
            while let Some(event) = client.poll_event()? {
                match event {
                    Event::Verdict(v) => verdicts.push(format!("{} {:?}", v.target, v.reason)),
                    Event::PathLost { .. } => paths += 1,
                    Event::Lost { count } => lost += count,
                    _ => {}
                }
            }
        }
    }
    hogs.stop();
    let sent: u64 = floods.into_iter().map(|f| f.stop().packets).sum();
    let after = counters(&agents)?;
    let counted: Vec<_> =
        COUNTERS.iter().zip(after.iter().zip(&before)).map(|(c, (a, b))| format!("{c} {}", a - b)).collect();
    let timeouts: Vec<_> = (1..=HOSTS)
        .map(|h| {
            let peers = status(&agents, h).map(|s| s["peers"].clone()).unwrap_or_default();
            let us = peers.as_array().into_iter().flatten().map(|p| p["timeout_us"].to_string());
            us.collect::<Vec<_>>().join("/")
        })
        .collect();
    let mut remark = format!(
        "{} s, a hog on every core, {FLOOD_MBIT} Mbit/s to every {PORT_MBIT} Mbit/s port ({sent} packets); agents \
         counted: {}; paths held lost {paths}, events lost {lost}; timeouts in the end, us: {}",
        stretch.as_secs(),
        counted.join(", "),
        timeouts.join(" ")
    );
    if !verdicts.is_empty() {
        remark = format!("{remark}; verdicts: {}", verdicts.join(", "));
    }
    let mut figure = Figure::count(name, verdicts.len() as u64, stretch.as_secs()).remark(remark);
    figure.statistic = "count".into();
    Ok(figure)
}

/// Counters, summed over the agents.
fn counters(agents: &Agents) -> anyhow::Result<Vec<u64>> {
    let mut sums = vec![0; COUNTERS.len()];
    for host in 1..=HOSTS {
        let status = status(agents, host).map_err(anyhow::Error::msg)?;
        for (sum, name) in sums.iter_mut().zip(COUNTERS) {
            *sum += status["counters"][name].as_u64().with_context(|| format!("no counter {name}"))?;
        }
    }
    Ok(sums)
}

fn cpu_share(name: &str, stretch: Duration) -> anyhow::Result<Figure> {
    let bed = Testbed::build(Spec::hosts(HOSTS))?;
    let agents = start_agents(&bed)?;
    let pids: Vec<u32> = (1..=HOSTS).filter_map(|h| agents.pid(h)).collect();
    let times = || pids.iter().map(|pid| cpu_time_ns(*pid)).collect::<Result<Vec<_>, _>>();
    std::thread::sleep(CPU_SETTLE);
    let (start, before) = (now_ns(), times()?);
    std::thread::sleep(stretch);
    let (end, after) = (now_ns(), times()?);
    let shares: Vec<f64> =
        after.iter().zip(&before).map(|(a, b)| 100.0 * (a - b) as f64 / (end - start) as f64).collect();
    let most = shares.iter().copied().fold(0.0, f64::max);
    let listed: Vec<_> = shares.iter().map(|s| format!("{s:.2}")).collect();
    Ok(Figure {
        figure: name.into(),
        value: Some(most),
        unit: "%".into(),
        statistic: "max".into(),
        n: shares.len() as u64,
        min: shares.iter().copied().reduce(f64::min),
        max: Some(most),
        why: Some(format!(
            "of a core, {} s, agents one by one: {}; what the receive programs of all hosts cost is within, as a veth \
             pair runs them in the sender's time",
            stretch.as_secs(),
            listed.join(", ")
        )),
        ..Figure::default()
    })
}
