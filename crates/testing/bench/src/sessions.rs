// SPDX-License-Identifier: Apache-2.0
//! Programs that come and go: heartbeats of their host that are late because a session is being closed.

use crate::Args;
use crate::fide_side::{connect, start_agents, status};
use anyhow::Context;
use fide_client::{Client, Wanted};
use fide_testbed::figures::{Figure, Goal, Report};
use fide_testbed::{Agents, Spec, Testbed, retry_until};
use std::time::{Duration, Instant};

const HOSTS: usize = 3;
const HOST: usize = 1;
/// Sessions that are open at once, and end at once.
const AT_ONCE: usize = 40;
const NAME: &str = "session_end_skipped_heartbeats";
/// How long the agent may take to close ended sessions.
const CLOSED_LIMIT: Duration = Duration::from_secs(20);

/// The figure.
pub(crate) fn measure(args: &Args, report: &mut Report) {
    let goal = Goal::AtMost(0.0);
    match try_measure(if args.quick { 1 } else { 10 }) {
        Ok(figure) => report.add(figure.goal(goal)),
        Err(why) => report.add(Figure::unmeasured(NAME, "count", format!("{why:#}")).goal(goal)),
    }
}

fn try_measure(rounds: u32) -> anyhow::Result<Figure> {
    let bed = Testbed::build(Spec::hosts(HOSTS))?;
    let agents = start_agents(&bed)?;
    let begun = Instant::now();
    let before = Counted::at(&agents)?;
    for _ in 0..rounds {
        let mut clients: Vec<Client> =
            (0..AT_ONCE).map(|_| connect(&agents, HOST)).collect::<anyhow::Result<Vec<_>>>()?;
        for client in &mut clients {
            for host in (1..=HOSTS).filter(|host| *host != HOST) {
                client.monitor(&format!("@{}", bed.host(host).name()), Wanted::default())?;
            }
        }
        drop(clients);
        retry_until("the end of all sessions", CLOSED_LIMIT, || {
            match status(&agents, HOST)?["clients"].as_array().map_or(0, Vec::len) {
                0 => Ok(()),
                n => Err(format!("{n} are open")),
            }
        })?;
    }
    let with = Counted::at(&agents)?.since(&before);
    let took = begun.elapsed();
    // As long again without any program that comes or goes: the lateness of this machine by itself.
    let before = Counted::at(&agents)?;
    std::thread::sleep(took);
    let without = Counted::at(&agents)?.since(&before);
    let sessions = u64::from(rounds) * AT_ONCE as u64;
    Ok(Figure::count(NAME, with.at_session_ends, sessions).remark(format!(
        "{sessions} sessions of h{HOST}, {AT_ONCE} at once, each with {} watches; of its heartbeats, {} sent and {} skipped for any reason in \
         {:.1} s; in as long without sessions {} sent, {} skipped",
        HOSTS - 1,
        with.sent,
        with.skipped,
        took.as_secs_f64(),
        without.sent,
        without.skipped
    )))
}

/// The agent's own counters.
struct Counted {
    sent: u64,
    skipped: u64,
    at_session_ends: u64,
}

impl Counted {
    fn at(agents: &Agents) -> anyhow::Result<Self> {
        let status = status(agents, HOST).map_err(anyhow::Error::msg)?;
        let of = |name: &str| status["counters"][name].as_u64().with_context(|| format!("no counter {name}"));
        Ok(Self {
            sent: of("heartbeats_sent")?,
            skipped: of("heartbeats_skipped")?,
            at_session_ends: of("session_end_skipped")?,
        })
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            sent: self.sent - before.sent,
            skipped: self.skipped - before.skipped,
            at_session_ends: self.at_session_ends - before.at_session_ends,
        }
    }
}
