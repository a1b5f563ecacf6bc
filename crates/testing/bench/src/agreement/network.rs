// SPDX-License-Identifier: Apache-2.0
//! Three replicas over the testbed's network.

use std::path::PathBuf;

use anyhow::Context;
use fide_counter::{Protocol, Replicas, Spec};
use fide_testbed::{AgentSpec, Agents, AgentsSpec, Spec as BedSpec, Testbed, figures::Report, find_binary};
use indicatif::ProgressBar;

use crate::{Args, killed, load};

/// Hidden first argument of this program that makes it a replica.
pub(super) const REPLICA: &str = "__replica";
pub(super) const HOSTS: usize = 3;
pub(super) const VALUE_BYTES: u32 = 64;
pub(super) const WINDOW: u64 = 128;
/// The default of the agents.
pub(super) const HEARTBEAT_US: u32 = 1000;

pub(super) fn agents(bed: &Testbed, receive: &str, heartbeat_us: u32) -> anyhow::Result<Agents> {
    let agent = AgentSpec { receive: receive.to_owned(), ..AgentSpec::default() };
    Ok(Agents::start(
        bed,
        AgentsSpec { program: vec![find_binary("fide")?], agent, heartbeat_us, ..AgentsSpec::default() },
    )?)
}

pub(super) fn replicas(bed: &Testbed, agents: &Agents, group: &str, protocol: Protocol) -> anyhow::Result<Replicas> {
    let program = vec![std::env::current_exe().context("finding this program")?, PathBuf::from(REPLICA)];
    Replicas::start(bed.hosts(), agents, Spec { program, group: group.to_owned(), protocol, window: WINDOW })
}

/// Runs the wanted parts.
pub(super) fn run(args: &Args, report: &mut Report) -> anyhow::Result<()> {
    let bed = Testbed::build(BedSpec { hosts: HOSTS, offloads: true, ..BedSpec::default() })?;
    let loads = load::Wanted::of(args);
    let kills = if args.wants("leader_killed") { args.kills() } else { 0 };
    let bar = ProgressBar::new((loads.steps() + kills) as u64)
        .with_style(indicatif::ProgressStyle::with_template("{msg:24} {wide_bar} {pos}/{len} {eta}")?);
    loads.measure(&bed, report, &bar)?;
    if kills > 0 {
        killed::measure(&bed, kills, report, &bar)?;
    }
    bar.finish_and_clear();
    Ok(())
}
