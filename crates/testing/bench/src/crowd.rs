// SPDX-License-Identifier: Apache-2.0
//! As many programs as a host has slots for, on nine hosts: all are known everywhere, and so is each death.

use crate::Args;
use crate::fide_side::{connect, start_agents, timeout_ns};
use anyhow::{Context, ensure};
use fide_client::{Client, Error, Event, Reason, Wanted, now_ns, state};
use fide_testbed::figures::{Figure, Goal, Report, Samples, Statistic};
use fide_testbed::{Spec, Testbed, Victim, VictimSpec, retry_until};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

const HOSTS: usize = 9;
const PROGRAMS: usize = 64;
const SIGKILL: i32 = 9;
/// Until all programs are known everywhere.
const KNOWN_LIMIT: Duration = Duration::from_secs(30);
/// From a kill until everybody has to know.
const VERDICT_LIMIT: Duration = Duration::from_secs(2);
/// Between two looks of a waiting program at whether it is to stop.
const LOOK: Duration = Duration::from_millis(200);
const NAME: &str = "programs_64_hosts_9";

/// A verdict at a host: which (by number), on what, why, and when its program had it.
struct Told {
    at: usize,
    target: String,
    reason: Reason,
    ns: u64,
}

/// The figure, and the detection time with it.
pub(crate) fn measure(args: &Args, report: &mut Report) {
    let goal = Goal::AtLeast(1.0);
    match try_measure(args.quiet()) {
        Ok((figure, times, unexplained)) => {
            let name = format!("{NAME}_unexplained_verdicts");
            report.add(figure.goal(goal).unless(unexplained > 0));
            report.add(Figure::count(&name, unexplained, times.n()).goal(Goal::AtMost(0.0)));
            report.add(Figure::time(&format!("{NAME}_detection"), Statistic::P50, &times));
        }
        Err(why) => report.add(Figure::unmeasured(NAME, "share", format!("{why:#}")).goal(goal)),
    }
}

/// The figure, the times, and the verdicts that nobody's death explains.
fn try_measure(quiet: Duration) -> anyhow::Result<(Figure, Samples, u64)> {
    let bed = Testbed::build(Spec::hosts(HOSTS))?;
    let agents = start_agents(&bed)?;
    let start = Instant::now();
    let mut clients = Vec::new();
    let mut victims: Vec<Vec<Victim>> = Vec::new();
    for host in bed.hosts() {
        let mut client = connect(&agents, host.index())?;
        let mut mine = Vec::new();
        for i in 0..PROGRAMS {
            let victim = Victim::spawn(Some(host), &VictimSpec::default())?;
            client
                .join_pid(&format!("p{i}"), victim.pid(), Duration::ZERO)
                .with_context(|| format!("program {i} of {}", host.name()))?;
            mine.push(victim);
        }
        clients.push(client);
        victims.push(mine);
    }
    for client in &mut clients {
        await_known(client)?;
    }
    let known_after = start.elapsed();
    let mut monitors = Vec::new();
    let mut refusal = None;
    for (client, me) in clients.iter_mut().zip(bed.hosts()) {
        let others: Vec<_> = bed.hosts().iter().filter(|h| h.index() != me.index()).collect();
        // Those that will die first: there may be fewer watches than programs.
        let programs =
            (0..PROGRAMS).flat_map(|i| others.iter().map(move |h| (h, (victim_of(h.index()) + i) % PROGRAMS)));
        let mut made = 0;
        for (host, program) in programs {
            match client.monitor(&format!("p{program}@{}", host.name()), Wanted::default()) {
                Ok(_) => made += 1,
                Err(Error::Refused(why)) if made >= others.len() => {
                    refusal = Some(why.message);
                    break;
                }
                Err(e) => return Err(e.into()),
            }
        }
        await_ups(client, made)?;
        monitors.push(made);
    }
    // A false verdict would come now.
    let (tx, rx) = channel();
    let stop = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (1..)
        .zip(clients)
        .map(|(at, client)| {
            let (tx, stop) = (tx.clone(), stop.clone());
            std::thread::Builder::new().name(format!("program-{at}")).spawn(move || wait(at, client, &tx, &stop))
        })
        .collect();
    std::thread::sleep(quiet);
    let mut told: Vec<Told> = rx.try_iter().collect();
    let mut times = Samples::default();
    let (mut seen, mut expected) = (0usize, 0usize);
    for (host, programs) in bed.hosts().iter().zip(&mut victims) {
        let program = victim_of(host.index());
        let target = format!("p{program}@{}", host.name());
        let victim = &mut programs[program];
        let killed = victim.kill()?;
        let (deadline, mut at) = (Instant::now() + VERDICT_LIMIT, HashSet::new());
        while at.len() < HOSTS - 1 {
            let Ok(t) = rx.recv_timeout(deadline.saturating_duration_since(Instant::now())) else { break };
            if t.target == target && t.reason == Reason::Killed(SIGKILL) {
                times.add(t.ns.saturating_sub(killed));
                at.insert(t.at);
            } else {
                told.push(t);
            }
        }
        expected += HOSTS - 1;
        seen += at.len();
        victim.wait()?;
    }
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        let _ = thread?.join();
    }
    told.extend(rx.try_iter());
    let others: Vec<_> = told.iter().take(8).map(|t| format!("h{}: {} {:?}", t.at, t.target, t.reason)).collect();
    let remark = format!(
        "{seen} of {expected} verdicts; all {} programs known at every host after {:.1} s; {} monitors at each{}; {} \
         verdicts that nobody's death explains{}; timeout of h1 for h2 {} us",
        HOSTS * PROGRAMS,
        known_after.as_secs_f64(),
        monitors.iter().min().unwrap_or(&0),
        refusal.map_or(String::new(), |why| format!(" (then it was refused: {why})")),
        told.len(),
        if others.is_empty() { String::new() } else { format!(" ({})", others.join(", ")) },
        timeout_ns(&agents, 1, 2)? / 1000,
    );
    let figure = Figure {
        figure: NAME.into(),
        value: Some(seen as f64 / expected as f64),
        unit: "share".into(),
        statistic: "count".into(),
        n: expected as u64,
        why: Some(remark),
        ..Figure::default()
    };
    Ok((figure, times, told.len() as u64))
}

/// Which program of a host (by number, from 1) dies: a different slot on each.
fn victim_of(host: usize) -> usize {
    (host - 1) * (PROGRAMS - 1) / (HOSTS - 1)
}

/// Waits until the alive table has all programs of all other hosts.
fn await_known(client: &Client) -> anyhow::Result<()> {
    let me = usize::from(client.agent().host_id);
    let known = || {
        let others = (1..=HOSTS).filter(|h| *h != me);
        let slots = others.flat_map(|h| (0..PROGRAMS).map(move |slot| (h as u16, slot as u8)));
        slots.filter(|(host, slot)| client.table().state(*host, *slot) == Some(state::ALIVE)).count()
    };
    Ok(retry_until(&format!("the programs seen from h{me}"), KNOWN_LIMIT, || match known() {
        n if n == (HOSTS - 1) * PROGRAMS => Ok(()),
        n => Err(format!("{n} of {} are known", (HOSTS - 1) * PROGRAMS)),
    })?)
}

/// Waits until so many targets are up.
fn await_ups(client: &mut Client, targets: usize) -> anyhow::Result<()> {
    let deadline = Instant::now() + KNOWN_LIMIT;
    let mut up = HashSet::new();
    while up.len() < targets {
        let left = deadline.saturating_duration_since(Instant::now());
        ensure!(!left.is_zero(), "{} of {targets} monitored programs are up at {}", up.len(), client.agent().host);
        if let Some(Event::Up { monitor, .. }) = client.wait_event(Some(left))? {
            up.insert(monitor);
        }
    }
    Ok(())
}

/// A program that waits for verdicts.
fn wait(at: usize, mut client: Client, tx: &Sender<Told>, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        match client.wait_event(Some(LOOK)) {
            Ok(Some(Event::Verdict(v))) => {
                let _ = tx.send(Told { at, ns: now_ns(), target: v.target.to_string(), reason: v.reason });
            }
            Ok(_) => {}
            Err(_) => return,
        }
    }
}
