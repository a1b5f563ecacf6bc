// SPDX-License-Identifier: Apache-2.0
//! `leader_killed`: from `kill -9` of a leader to the next one's first decision, and its parts.

use std::time::Duration;

use fide_counter::{Order, Protocol, Reported};
use fide_testbed::{
    Testbed,
    figures::{Figure, Goal, Report, Samples, Statistic},
};
use indicatif::ProgressBar;

use crate::network::{HEARTBEAT_US, VALUE_BYTES, agents, replicas};

const GOAL_US: f64 = 2000.0;

/// Times from `kill -9` of a leader on.
#[derive(Default)]
struct Killed {
    /// Until the next leader's agent knew of the death.
    detection: Samples,
    /// From there until its program knew that it leads.
    to_leader: Samples,
    /// From there until it had decided everything that its predecessor may have decided.
    to_sure: Samples,
    /// From there until its own first decision.
    to_first: Samples,
    /// The whole gap.
    gap: Samples,
}

/// Kills the leader under load, again and again.
fn leader_killed(bed: &Testbed, kills: usize, bar: &ProgressBar) -> anyhow::Result<Killed> {
    let mut killed = Killed::default();
    let agents = agents(bed, "auto", HEARTBEAT_US)?;
    for kill in 0..kills {
        bar.set_message("leader killed");
        let mut replicas = replicas(bed, &agents, &format!("killed-{kill}"), Protocol::Hsuc)?;
        for node in &mut replicas.nodes {
            node.order(&Order::Takeover { takeover: "t".to_owned(), clients: 16, value_bytes: VALUE_BYTES })?;
        }
        // The first leader's first decision: the load runs.
        while !matches!(replicas.wait("a decision")?.1, Reported::First { .. }) {}
        std::thread::sleep(Duration::from_millis(50));
        let killed_ns = replicas.nodes[0].kill()?;
        let (mut died, mut knew, mut sure) = (0, 0, 0);
        loop {
            match replicas.wait("the next leader")? {
                (2, Reported::Leads { died_ns, knew_ns, ns, .. }) => (died, knew, sure) = (died_ns, knew_ns, ns),
                (2, Reported::First { ns, .. }) => {
                    killed.detection.add(died.saturating_sub(killed_ns));
                    killed.to_leader.add(knew.saturating_sub(died));
                    killed.to_sure.add(sure.saturating_sub(knew));
                    killed.to_first.add(ns.saturating_sub(sure));
                    killed.gap.add(ns.saturating_sub(killed_ns));
                    break;
                }
                _ => {}
            }
        }
        bar.inc(1);
    }
    Ok(killed)
}

/// The figures.
pub(super) fn measure(bed: &Testbed, kills: usize, report: &mut Report, bar: &ProgressBar) -> anyhow::Result<()> {
    let killed = leader_killed(bed, kills, bar)?;
    let late = Figure::time("leader_killed", Statistic::P50, &killed.gap).goal(Goal::AtMost(GOAL_US));
    report.add(late.remark("from kill -9 to the next leader's first decision, 16 clients; its parts are below"));
    let conditions = "rung auto, heartbeats of 1 ms, trust lease, policy majority";
    for (part, samples, what) in [
        ("detection", &killed.detection, "until the next leader's agent knows of the death"),
        ("to_leader", &killed.to_leader, "from there until its program knows that it leads"),
        ("to_sure", &killed.to_sure, "from there until it has decided what its predecessor may have"),
        ("to_first", &killed.to_first, "from there until the first decision of its own clients"),
    ] {
        let figure = Figure::time(&format!("leader_killed_{part}"), Statistic::P50, samples);
        report.add(figure.remark(format!("{what}; {conditions}")));
    }
    Ok(())
}
