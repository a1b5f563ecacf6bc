// SPDX-License-Identifier: Apache-2.0
//! As many programs as a host has slots for, on nine hosts: all are known everywhere, and so is each death.

use crate::Args;
use crate::fide_side::{connect, start_agents, timeout_ns};
use anyhow::{Context, ensure};
use fide_client::{Client, Error, Event, Reason, Wanted, now_ns, state};
use fide_testbed::figures::{Figure, Goal, Report, Samples, Statistic};
use fide_testbed::{Agents, Spec, Testbed, Victim, VictimSpec, retry_until};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

const HOSTS: usize = 9;
const PROGRAMS: usize = 64;
const SIGKILL: i32 = 9;
/// Until all programs are known everywhere.
const KNOWN_LIMIT: Duration = Duration::from_secs(30);
/// How long all hosts may take to know of a death.
const VERDICT_LIMIT: Duration = Duration::from_secs(2);
/// How often a waiting program checks whether it is to stop.
const LOOK: Duration = Duration::from_millis(200);
const NAME: &str = "programs_64_hosts_9";

/// A verdict as the program of a host has got it.
struct Seen {
    /// The host, by number.
    at: usize,
    target: String,
    reason: Reason,
    /// When the program got it.
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

/// The figure, the detection times, and the number of verdicts that no death explains.
fn try_measure(quiet: Duration) -> anyhow::Result<(Figure, Samples, u64)> {
    let bed = Testbed::build(Spec::hosts(HOSTS))?;
    let agents = start_agents(&bed)?;
    let start = Instant::now();
    let (mut clients, mut victims) = start_programs(&bed, &agents)?;
    for client in &mut clients {
        await_known(client)?;
    }
    let known_after = start.elapsed();
    let (monitors, refusal) = monitor_all(&bed, &mut clients)?;
    let (tx, rx) = channel();
    let stop = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (1..)
        .zip(clients)
        .map(|(at, client)| {
            let (tx, stop) = (tx.clone(), stop.clone());
            std::thread::Builder::new().name(format!("program-{at}")).spawn(move || wait(at, client, &tx, &stop))
        })
        .collect();
    // A false verdict would come now.
    std::thread::sleep(quiet);
    let mut deaths = Deaths { unexplained: rx.try_iter().collect(), ..Deaths::default() };
    for (host, programs) in bed.hosts().iter().zip(&mut victims) {
        let program = victim_of(host.index());
        deaths.kill(&mut programs[program], &format!("p{program}@{}", host.name()), &rx)?;
    }
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        let _ = thread?.join();
    }
    deaths.unexplained.extend(rx.try_iter());
    let Deaths { times, seen, expected, unexplained } = deaths;
    let others: Vec<_> =
        unexplained.iter().take(8).map(|seen| format!("h{}: {} {:?}", seen.at, seen.target, seen.reason)).collect();
    let remark = format!(
        "{seen} of {expected} verdicts; all {} programs known at every host after {:.1} s; {} monitors at each{}; {} \
         verdicts that nobody's death explains{}; timeout of h1 for h2 {} us",
        HOSTS * PROGRAMS,
        known_after.as_secs_f64(),
        monitors.iter().min().unwrap_or(&0),
        refusal.map_or(String::new(), |why| format!(" (then it was refused: {why})")),
        unexplained.len(),
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
    Ok((figure, times, unexplained.len() as u64))
}

/// Starts and joins all programs of each host: by host, its client and its programs.
fn start_programs(bed: &Testbed, agents: &Agents) -> anyhow::Result<(Vec<Client>, Vec<Vec<Victim>>)> {
    let mut clients = Vec::new();
    let mut victims = Vec::new();
    for host in bed.hosts() {
        let mut client = connect(agents, host.index())?;
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
    Ok((clients, victims))
}

/// Each host watches as many programs of the others as its agent grants, the victims first. How many each watches, and
/// why no more.
fn monitor_all(bed: &Testbed, clients: &mut [Client]) -> anyhow::Result<(Vec<usize>, Option<String>)> {
    let mut monitors = Vec::new();
    let mut refusal = None;
    for (client, me) in clients.iter_mut().zip(bed.hosts()) {
        let others: Vec<_> = bed.hosts().iter().filter(|h| h.index() != me.index()).collect();
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
    Ok((monitors, refusal))
}

/// Verdicts on programs that were killed.
#[derive(Default)]
struct Deaths {
    times: Samples,
    seen: usize,
    expected: usize,
    /// Verdicts on anything else, and second ones.
    unexplained: Vec<Seen>,
}

impl Deaths {
    /// Kills a program, and waits until all other hosts have the verdict, at most [`VERDICT_LIMIT`].
    fn kill(&mut self, victim: &mut Victim, target: &str, verdicts: &Receiver<Seen>) -> anyhow::Result<()> {
        let killed = victim.kill()?;
        let (deadline, mut at) = (Instant::now() + VERDICT_LIMIT, HashSet::new());
        while at.len() < HOSTS - 1 {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(verdict) = verdicts.recv_timeout(left) else { break };
            if verdict.target == target && verdict.reason == Reason::Killed(SIGKILL) {
                self.times.add(verdict.ns.saturating_sub(killed));
                at.insert(verdict.at);
            } else {
                self.unexplained.push(verdict);
            }
        }
        self.expected += HOSTS - 1;
        self.seen += at.len();
        victim.wait()?;
        Ok(())
    }
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
fn wait(at: usize, mut client: Client, tx: &Sender<Seen>, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        match client.wait_event(Some(LOOK)) {
            Ok(Some(Event::Verdict(v))) => {
                let _ = tx.send(Seen { at, ns: now_ns(), target: v.target.to_string(), reason: v.reason });
            }
            Ok(_) => {}
            Err(_) => return,
        }
    }
}
