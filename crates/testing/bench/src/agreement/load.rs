// SPDX-License-Identifier: Apache-2.0
//! Clients in closed loops: ours by both protocols, and etcd's raft over the same network in the same run.

use std::{
    process::Command,
    sync::mpsc::{Receiver, channel},
    time::{Duration, Instant},
};

use anyhow::{anyhow, bail};
use fide_counter::{Node, Order, Protocol, Reported};
use fide_testbed::{
    Testbed,
    figures::{Figure, Goal, Report},
    find_binary,
    sys::cpu_time_ns,
};
use indicatif::ProgressBar;

use crate::{
    Args,
    network::{HEARTBEAT_US, HOSTS, VALUE_BYTES, WINDOW, agents, replicas},
};

const PORT: u16 = 7500;
/// Values under way, one for each client.
const CLIENTS: [u32; 6] = [1, 16, 64, 256, 1024, 4096];
/// With XDP on it, a veth splits every train of packets, including TCP's. These agents receive without XDP,
/// so that both protocols have the network that raft would have without agents.
const PLAIN: &str = "af-packet";
/// The best rung of the machine, as agents choose it: a single value sends no trains.
const BEST: &str = "auto";
/// Heartbeat of agents whose heartbeats carry decisions: as in FiDe §6.4.
const HUC_HEARTBEAT_US: u32 = 100;
const LIMIT: Duration = Duration::from_secs(30);
/// Most of a core that an idle member may take, percent.
const IDLE_GOAL_PERCENT: f64 = 2.0;
/// How long idle members are measured.
const IDLE: Duration = Duration::from_secs(2);
const MOST: &str = "hsuc_vs_etcd_raft";
const LEAST: &str = "hsuc_vs_etcd_raft_least";
const MOST_HUC: &str = "huc_vs_etcd_raft";
const HUC_DECISION: &str = "huc_decision";
const IDLE_SHARE: &str = "idle_member_cpu_share";

/// Results of one protocol with so many clients, in each round.
#[derive(Debug, Clone, Default)]
struct Point {
    per_second: Vec<f64>,
    p50_us: Vec<f64>,
    p99_us: Vec<f64>,
    max_us: Vec<f64>,
}

impl Point {
    fn middle(values: &[f64]) -> f64 {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
    }

    fn note(&mut self, reported: &Reported) {
        if let Reported::Result { per_second, p50_us, p99_us, max_us, .. } = reported {
            self.per_second.push(*per_second);
            self.p50_us.push(*p50_us);
            self.p99_us.push(*p99_us);
            self.max_us.push(*max_us);
        }
    }
}

/// The result of an order, found among other reports.
fn result(mut next: impl FnMut() -> anyhow::Result<(u16, Reported)>) -> anyhow::Result<Reported> {
    loop {
        match next()?.1 {
            reported @ Reported::Result { .. } => return Ok(reported),
            Reported::Refused { why, leader, .. } => bail!("a run was refused: {why} (host {leader} leads)"),
            _ => {}
        }
    }
}

/// Asserts that all replicas have applied the same.
fn alike(nodes: &mut [Node], mut next: impl FnMut() -> anyhow::Result<(u16, Reported)>) -> anyhow::Result<()> {
    let until = Instant::now() + LIMIT;
    loop {
        let mut states = Vec::new();
        for node in nodes.iter_mut() {
            node.order(&Order::State { state: true })?;
            loop {
                if let Reported::State { applied, hash, .. } = next()?.1 {
                    states.push((applied, hash));
                    break;
                }
            }
        }
        if states.iter().all(|state| *state == states[0] && state.0 > 0) {
            return Ok(());
        }
        if Instant::now() > until {
            bail!("after the load the replicas differ: {states:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn order(clients: u32, seconds: f64) -> Order {
    Order::Run { run: format!("c{clients}"), clients, value_bytes: VALUE_BYTES, seconds }
}

/// The share of a core, percent, that the busiest of these members takes while no value is proposed.
fn idle_percent(nodes: &[Node]) -> anyhow::Result<f64> {
    let times = || nodes.iter().map(|node| cpu_time_ns(node.pid())).collect::<Result<Vec<_>, _>>();
    let (begun, before) = (Instant::now(), times()?);
    std::thread::sleep(IDLE);
    let (after, took) = (times()?, begun.elapsed());
    let most = after.iter().zip(&before).map(|(after, before)| after.saturating_sub(*before)).max().unwrap_or(0);
    Ok(most as f64 / took.as_nanos() as f64 * 100.0)
}

/// Reports of programs, each with its host.
type Events = Receiver<(u16, Reported)>;

fn raft_nodes(bed: &Testbed) -> anyhow::Result<(Vec<Node>, Events)> {
    let program = find_binary("etcd-raft-node")?;
    let peers: Vec<String> =
        bed.hosts().iter().map(|host| format!("{}={}:{PORT}", host.index(), host.addresses()[0])).collect();
    let (to, reported) = channel();
    let mut nodes = Vec::new();
    for host in bed.hosts() {
        let mut command: Command = host.command(&program);
        command.args(["-id", &host.index().to_string(), "-peers", &peers.join(",")]);
        nodes.push(Node::start(host.index() as u16, command, to.clone())?);
    }
    // Node 1 leads first; all have to know that.
    let until = Instant::now() + LIMIT;
    let mut known = 0;
    while known < nodes.len() {
        let (_, reported) = reported
            .recv_timeout(until.saturating_duration_since(Instant::now()))
            .map_err(|_| anyhow!("etcd's raft has no leader"))?;
        known += usize::from(matches!(reported, Reported::Leader { id: 1, .. }));
    }
    Ok((nodes, reported))
}

fn raft_round(bed: &Testbed, seconds: f64, points: &mut [Point], bar: &ProgressBar) -> anyhow::Result<()> {
    let (mut nodes, reported) = raft_nodes(bed)?;
    let next = || reported.recv_timeout(LIMIT).map_err(|_| anyhow!("etcd's raft tells nothing"));
    for (clients, point) in CLIENTS.iter().zip(points) {
        bar.set_message(format!("etcd's raft, {clients} clients"));
        nodes[0].order(&order(*clients, seconds))?;
        point.note(&result(next)?);
        bar.inc(1);
    }
    alike(&mut nodes, next)
}

/// The rounds that the wanted figures need.
pub(super) struct Wanted {
    rounds: usize,
    seconds: f64,
    hsuc: bool,
    /// How many of [`CLIENTS`] run with HUC.
    huc: usize,
    raft: bool,
    idle: bool,
    missing: Option<String>,
}

impl Wanted {
    pub(super) fn of(args: &Args) -> Self {
        let (rounds, seconds) = args.rounds();
        let compares = [MOST, LEAST].into_iter().any(|name| args.wants(name));
        let huc = match (args.wants(MOST_HUC), args.wants(HUC_DECISION)) {
            (true, _) => CLIENTS.len(),
            (false, true) => 1,
            (false, false) => 0,
        };
        let missing = find_binary("etcd-raft-node").err().map(|why| why.to_string());
        let raft = (compares || args.wants(MOST_HUC)) && missing.is_none();
        let idle = args.wants(IDLE_SHARE);
        Self { rounds, seconds, hsuc: compares || idle, huc, raft, idle, missing }
    }

    /// Number of runs of clients.
    pub(super) fn steps(&self) -> usize {
        self.rounds * ((usize::from(self.hsuc) + usize::from(self.raft)) * CLIENTS.len() + self.huc)
    }

    /// Measures all figures; the caller keeps the wanted ones.
    pub(super) fn measure(&self, bed: &Testbed, report: &mut Report, bar: &ProgressBar) -> anyhow::Result<()> {
        let [mut hsuc, mut huc, mut raft] = [(); 3].map(|()| vec![Point::default(); CLIENTS.len()]);
        let mut idle = Vec::new();
        for round in 0..self.rounds {
            if self.hsuc {
                idle.extend(self.round(bed, Protocol::Hsuc, PLAIN, round, CLIENTS.iter().zip(&mut hsuc), bar)?);
            }
            let mut loads = CLIENTS.iter().zip(&mut huc).take(self.huc);
            if self.huc > 0 {
                self.round(bed, Protocol::Huc, BEST, round, loads.by_ref().take(1), bar)?;
            }
            if self.huc > 1 {
                self.round(bed, Protocol::Huc, PLAIN, round, loads, bar)?;
            }
            if self.raft {
                raft_round(bed, self.seconds, &mut raft, bar)?;
            }
        }
        if self.steps() > 0 {
            bar.suspend(|| self.print(&hsuc, &huc, &raft));
        }
        match &self.missing {
            None => {
                report.add(compared(MOST, &hsuc, &raft, Some(Goal::AtLeast(2.5))));
                report.add(compared_least(LEAST, &hsuc, &raft));
                report.add(compared(MOST_HUC, &huc, &raft, None));
            }
            Some(why) => {
                for name in [MOST, LEAST, MOST_HUC] {
                    report.add(Figure::unmeasured(name, "per second", why));
                }
            }
        }
        report.add(huc_decision(&huc[0]));
        report.add(idle_share(&idle));
        Ok(())
    }

    /// Runs one of our protocols with each number of clients, and then with none. Returns the share of a
    /// core, percent, that its busiest member took with none.
    fn round<'p>(
        &self,
        bed: &Testbed,
        protocol: Protocol,
        receive: &str,
        round: usize,
        loads: impl Iterator<Item = (&'p u32, &'p mut Point)>,
        bar: &ProgressBar,
    ) -> anyhow::Result<Option<f64>> {
        let heartbeat_us = if protocol == Protocol::Huc { HUC_HEARTBEAT_US } else { HEARTBEAT_US };
        let agents = agents(bed, receive, heartbeat_us)?;
        let mut replicas = replicas(bed, &agents, &format!("{}-{receive}-{round}", protocol.name()), protocol)?;
        for (clients, point) in loads {
            bar.set_message(format!("{}, {clients} clients", protocol.name()));
            replicas.nodes[0].order(&order(*clients, self.seconds))?;
            point.note(&result(|| replicas.wait("a run"))?);
            bar.inc(1);
        }
        let mut nodes = std::mem::take(&mut replicas.nodes);
        alike(&mut nodes, || replicas.wait("a state"))?;
        if protocol == Protocol::Hsuc && self.idle { idle_percent(&nodes).map(Some) } else { Ok(None) }
    }

    fn print(&self, hsuc: &[Point], huc: &[Point], raft: &[Point]) {
        println!(
            "\n{HOSTS} hosts, {VALUE_BYTES}-byte values, clients in the leader's process, window {WINDOW}, {} rounds of {} s each: medians; rung {PLAIN}, HUC with one client {BEST}",
            self.rounds, self.seconds
        );
        println!("{:>8} | {:^36} | {:^36} | {:^36}", "", "HSUC", "HUC", "etcd's raft");
        let columns = format!("{:>12} {:>11} {:>11}", "per second", "p50, us", "p99, us");
        println!("{:>8} | {columns} | {columns} | {columns}", "clients");
        for (at, clients) in CLIENTS.iter().enumerate() {
            let columns = [&hsuc[at], &huc[at], &raft[at]].map(|point| {
                if point.per_second.is_empty() {
                    return format!("{:>12} {:>11} {:>11}", "-", "-", "-");
                }
                let [rate, p50, p99] =
                    [&point.per_second, &point.p50_us, &point.p99_us].map(|values| Point::middle(values));
                format!("{rate:>12.0} {p50:>11.1} {p99:>11.1}")
            });
            println!("{clients:>8} | {}", columns.join(" | "));
        }
    }
}

fn idle_share(idle: &[f64]) -> Figure {
    let most = idle.iter().copied().fold(0.0, f64::max);
    let share = Figure {
        figure: IDLE_SHARE.into(),
        value: Some(most),
        unit: "%".into(),
        statistic: "max".into(),
        n: idle.len() as u64,
        max: Some(most),
        ..Figure::default()
    };
    share
        .spread_of(idle.iter().copied())
        .goal(Goal::AtMost(IDLE_GOAL_PERCENT))
        .remark(format!("of a core, the busiest of {HOSTS} members of HSUC in {} s without a proposal", IDLE.as_secs()))
}

/// A decision takes one heartbeat of its leader and one of each other member, which they send at once.
fn huc_decision(alone: &Point) -> Figure {
    let value = Point::middle(&alone.p50_us);
    let figure = Figure {
        figure: "huc_decision".into(),
        value: Some(value),
        unit: "us".into(),
        statistic: "p50".into(),
        n: alone.p50_us.len() as u64,
        p50: Some(value),
        ..Figure::default()
    };
    figure
        .spread_of(alone.p50_us.iter().copied())
        .goal(Goal::AtMost(f64::from(HUC_HEARTBEAT_US) + 100.0))
        .remark(format!("one client's, heartbeats of {HUC_HEARTBEAT_US} us, rung {BEST}; n counts rounds"))
}

/// By clients: our decisions per second divided by raft's, in each round.
fn ratios(ours: &Point, raft: &Point) -> Vec<f64> {
    ours.per_second.iter().zip(&raft.per_second).map(|(ours, theirs)| ours / theirs).collect()
}

/// The least ratio of decisions per second, over all numbers of clients; not met if our decisions take longer
/// anywhere.
fn compared_least(name: &str, ours: &[Point], raft: &[Point]) -> Figure {
    let m = Point::middle;
    let all: Vec<_> =
        (0..CLIENTS.len()).map(|at| (CLIENTS[at], m(&ours[at].per_second), m(&raft[at].per_second))).collect();
    let (clients, rate, their_rate) =
        all.iter().copied().min_by(|a, b| (a.1 / a.2).total_cmp(&(b.1 / b.2))).unwrap_or((0, 0.0, 0.0));
    let by_round: Vec<Vec<f64>> = ours.iter().zip(raft).map(|(ours, raft)| ratios(ours, raft)).collect();
    let rounds = by_round.iter().map(Vec::len).min().unwrap_or(0);
    let least =
        (0..rounds).map(|round| by_round.iter().map(|ratios| ratios[round]).fold(f64::MAX, f64::min) * their_rate);
    let slower: Vec<String> = (0..CLIENTS.len())
        .filter(|at| m(&ours[*at].p50_us) > m(&raft[*at].p50_us))
        .map(|at| format!("{}: {:.1} us, raft {:.1}", CLIENTS[at], m(&ours[at].p50_us), m(&raft[at].p50_us)))
        .collect();
    let ratios: Vec<String> =
        all.iter().map(|(clients, ours, theirs)| format!("{clients}: {:.2}", ours / theirs)).collect();
    let figure = Figure {
        figure: name.into(),
        value: Some(rate),
        unit: "per second".into(),
        statistic: "p50".into(),
        n: rounds as u64,
        baseline: Some(format!("etcd raft, {clients} clients")),
        baseline_value: Some(their_rate),
        ratio: Some(rate / their_rate),
        ..Figure::default()
    };
    let longer = if slower.is_empty() {
        String::new()
    } else {
        format!("; a decision takes longer (p50) with {}", slower.join(", "))
    };
    figure
        .spread_of(least)
        .goal(Goal::AtLeast(1.2))
        .unless(!slower.is_empty())
        .remark(format!("medians of {rounds} rounds on both sides, by clients: {}{longer}", ratios.join(", ")))
}

/// Our most decisions at a p50 no longer than raft's, where raft decides most.
fn compared(name: &str, ours: &[Point], raft: &[Point], goal: Option<Goal>) -> Figure {
    let m = Point::middle;
    let within = |theirs: &Point| {
        let within = ours.iter().filter(|point| m(&point.p50_us) <= m(&theirs.p50_us));
        within.max_by(|a, b| m(&a.per_second).total_cmp(&m(&b.per_second)))
    };
    let rate = |point: Option<&Point>| point.map_or(0.0, |point| m(&point.per_second));
    let (clients, theirs) = CLIENTS
        .iter()
        .zip(raft)
        .max_by(|a, b| m(&a.1.per_second).total_cmp(&m(&b.1.per_second)))
        .expect("there are numbers of clients");
    let (mine, their_rate) = (within(theirs), m(&theirs.per_second));
    let others: Vec<String> = CLIENTS
        .iter()
        .zip(raft)
        .map(|(clients, theirs)| format!("{clients}: {:.1}", rate(within(theirs)) / m(&theirs.per_second)))
        .collect();
    let figure = Figure {
        figure: name.into(),
        value: Some(rate(mine)),
        unit: "per second".into(),
        statistic: "p50".into(),
        n: theirs.per_second.len() as u64,
        baseline: Some(format!("etcd raft, {clients} clients")),
        baseline_value: Some(their_rate),
        ratio: Some(rate(mine) / their_rate),
        ..Figure::default()
    };
    let rounds = mine.map(|mine| ratios(mine, theirs)).unwrap_or_default();
    let figure = figure.spread_of(rounds.into_iter().map(|ratio| ratio * their_rate));
    let figure = match goal {
        Some(goal) => figure.goal(goal),
        None => figure,
    };
    figure.remark(format!(
        "the most that is decided at a p50 that is no longer than raft's, where raft decides most; with raft's other clients: {}",
        others.join(", ")
    ))
}
